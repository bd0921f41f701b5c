// Packed float32 matrix products for tiles that feed an epilogue and are never stored whole.
//
// A 6×16 register tile (twelve 8-wide accumulators) reads panels that lie in the order of use:
//   rows6   [rows/6 ][depth][6 ]   left operand: six rows side by side
//   rows16  [rows/16][depth][16]   right operand of A·Bᵀ: sixteen rows side by side
//   cols16  [depth/16][rows][16]   right operand of W·B: sixteen columns side by side
//   cols64  [depth/64][rows][64]   sums that rows are accumulated into
// Rows are padded to kTile (a multiple of 6 and of 16) and columns to kColumns, with zeros, so no
// loop has a remainder. The order of summation depends on the sizes alone, never on threads.
#pragma once

#include <atomic>

#include "../ops.h"

namespace c2v {

// Eight floats at any address: AVX2 on x86, pairs of NEON registers elsewhere.
typedef float float8 __attribute__((vector_size(32), aligned(4)));

constexpr int64_t kTile = 48;      // rows and columns of a tile
constexpr int64_t kColumns = 64;   // columns are padded to this
constexpr int64_t kDepth = 256;    // a 16-wide panel of this depth takes half the L1 cache

inline float8 load8(const float* p) { return *reinterpret_cast<const float8*>(p); }
inline void store8(float* p, float8 v) { *reinterpret_cast<float8*>(p) = v; }
inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Runs f(0) … f(count-1), each once, on torch's threads. Threads take the next task when free, so
// tasks may differ in length; results are deterministic because a task owns what it writes.
template <class F>
void parallel_tasks(int64_t count, const F& f) {
  std::atomic<int64_t> next{0};
  const int64_t threads = std::min<int64_t>(count, torch::stable::get_num_threads());
  torch::stable::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    for (int64_t i = next++; i < count; i = next++) f(i);
  });
}

// c[6][16] += a · b over `depth`, or = when `fresh`.
inline void product_6x16(const float* a, const float* b, int64_t depth, float* c, int64_t stride,
                         bool fresh) {
  float8 sum[6][2] = {};
  for (int64_t k = 0; k < depth; ++k, a += 6, b += 16) {
    const float8 left = load8(b), right = load8(b + 8);
#pragma GCC unroll 6
    for (int i = 0; i < 6; ++i) {
      sum[i][0] += a[i] * left;
      sum[i][1] += a[i] * right;
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < 6; ++i, c += stride) {
    store8(c, fresh ? sum[i][0] : load8(c) + sum[i][0]);
    store8(c + 8, fresh ? sum[i][1] : load8(c + 8) + sum[i][1]);
  }
}

// tile[kTile][kTile] = A·Bᵀ for kTile rows of each, given as rows6 and rows16 panels; those from
// `a_rows` and `b_rows` on are padding.
inline void tile_product(const float* rows6, int64_t a_rows, const float* rows16, int64_t b_rows,
                         int64_t depth, float* tile) {
  a_rows = std::min(kTile, a_rows), b_rows = std::min(kTile, b_rows);
  if (a_rows < kTile || b_rows < kTile) std::fill(tile, tile + kTile * kTile, 0.0f);
  for (int64_t k = 0; k < depth; k += kDepth) {
    const int64_t part = std::min(kDepth, depth - k);
    for (int64_t j = 0; j < b_rows; j += 16)
      for (int64_t i = 0; i < a_rows; i += 6)
        product_6x16(rows6 + i * depth + k * 6, rows16 + j * depth + k * 16, part,
                     tile + i * kTile + j, kTile, k == 0);
  }
}

// out += W·B for `height` ≤ kTile rows of `out` and the 16-column panels first … last. W's `depth`
// columns are packed [kTile/6][depth][6]; `cols16` and `out` (cols64) point at their first row in
// panel 0, and have `rows` rows each.
inline void accumulate_product(const float* w6, const float* cols16, int64_t rows, int64_t depth,
                               int64_t first, int64_t last, float* out, int64_t height) {
  for (int64_t p = first; p < last; ++p)
    for (int64_t i = 0; i < height; i += 6)
      product_6x16(w6 + i * depth, cols16 + p * rows * 16, depth,
                   out + p / 4 * rows * 64 + i * 64 + p % 4 * 16, 64, false);
}

}  // namespace c2v
