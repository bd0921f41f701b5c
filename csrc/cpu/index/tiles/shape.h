// Packed float32 matrix products for tiles that feed an epilogue and are never stored whole: how
// matrices are packed, and the functions that passes.h has for each kind of vector.
//
// A left operand lies in plain rows. Panels lie in the order in which a register tile reads them; its
// sizes are those of a kind:
//   right    [rows / right][depth][right]         right operand of A·Bᵀ: a tile's columns side by side
//   columns  [depth / columns][rows][columns]     right operand of W·B: the same for columns of B
//   cols64   [depth / 64][rows][64]               sums that rows are accumulated into
// Rows are padded to kTile, and columns to kColumns, with zeros, so no loop has a remainder. The order
// of summation depends on the sizes alone, never on threads.
#pragma once

#include <cstdint>

namespace c2v {

constexpr int64_t kTile = 48;               // rows and columns of a tile
constexpr int64_t kTileBytes = kTile / 8;   // a tile's bits in one row
constexpr int64_t kColumns = 64;            // columns are padded to this

// `weights`: rows of W side by side; `depth`: as deep a panel takes half of the first-level cache.
struct PanelSizes {
  int64_t columns, weights, depth;
};

// Rows of bits: which source rows are subtracted, and (null when none) whose cosine is exactly 0.
struct Signs {
  const uint8_t *minus, *zero;
  int64_t stride, bytes;
};

// pack_right: kTile rows of `depth` as panels of the right operand.
//
// tile_product: tile[kTile][kTile] = A·Bᵀ for kTile rows of each; those from `a_rows` and `b_rows` on
// are padding.
//
// accumulate_product: out += W·B for `height` ≤ kTile rows of `out` and the panels first … last of
// columns. W's `depth` columns are packed by `weights` rows; `b` and `out` (cols64) point at their
// first row in panel 0, and have `rows` rows each.
//
// add_signed_rows: out[r][64] += sum_k ±row_k for `rows` rows of signs; row k's columns are those of
// row k of `b`, whose panels are panel_stride apart.
//
// scan_tile: a tile's signs and zeros, one bit each; returns sum |tile|. `rows` × `columns` of it are
// not padding, whose zeros are of no interest.
#define TILE_FUNCTIONS                                                                            \
  PanelSizes panel_sizes();                                                                       \
  void pack_right(const float* rows, int64_t depth, float* right);                                \
  void tile_product(const float* left, int64_t a_rows, const float* right, int64_t b_rows,        \
                    int64_t depth, float* tile);                                                  \
  void accumulate_product(const float* w, const float* b, int64_t rows, int64_t depth,            \
                          int64_t first, int64_t last, float* out, int64_t height);               \
  void add_signed_rows(const Signs&, const float* b, int64_t panel_stride, int64_t rows,          \
                       float* out);                                                               \
  double scan_tile(const float* tile, int64_t rows, int64_t columns, uint8_t* signs,              \
                   uint8_t* zeros, bool* any_zero);                                               \
  void exp_of_cosines(float* tile); /* |x| ≤ 1 */

namespace avx2 {
TILE_FUNCTIONS
}
namespace avx512 {
TILE_FUNCTIONS
}

}  // namespace c2v
