// sum_{j,k} |<â_j, b̂_k>| and its gradients for â and b̂; the sum serves L_orth of both losses.
//
// The gradients are sums of unit rows with signs, sign(S)·B̂ and sign(S)ᵀ·Â, so only the signs of a
// strip of S = ÂB̂ᵀ are kept, one bit each, and no multiplication is left: for four rows all sixteen
// signed sums are tabulated, and four signs select one. That does four multiply-adds of the
// plain product with one addition.
#pragma once

#include <vector>

#include "unit_rows.h"

namespace c2v {

constexpr int64_t kStrip = 11 * kTile;        // rows of S whose signs are held at a time
constexpr int64_t kTileBytes = kTile / 8;     // a tile's bits in one row
constexpr int64_t kStripBytes = kStrip / 8;

// Bit i is set where lane i is negative (or -0).
inline uint8_t sign_bits(float8 v) {
#ifdef __AVX__
  return static_cast<uint8_t>(__builtin_ia32_movmskps256(v));
#else
  uint8_t bits = 0;
  for (int i = 0; i < 8; ++i) bits |= static_cast<uint8_t>(std::signbit(v[i]) << i);
  return bits;
#endif
}

inline uint8_t zero_bits(float8 v) {
  typedef int32_t int8x __attribute__((vector_size(32), aligned(4)));
  return sign_bits(reinterpret_cast<float8>(static_cast<int8x>(v == 0.0f)));
}

// Row i of an 8×8 bit matrix is byte i; this swaps rows and columns.
inline uint64_t transpose_bits(uint64_t x) {
  uint64_t t = (x ^ (x >> 7)) & 0x00AA00AA00AA00AAull;
  x ^= t ^ (t << 7);
  t = (x ^ (x >> 14)) & 0x0000CCCC0000CCCCull;
  x ^= t ^ (t << 14);
  t = (x ^ (x >> 28)) & 0x00000000F0F0F0F0ull;
  return x ^ t ^ (t << 28);
}

// Bits of a strip both ways: along[row][columns/8] and across[column][kStrip/8].
struct BitPlane {
  int64_t row_bytes;
  std::vector<uint8_t> along, across;
  explicit BitPlane(int64_t columns)
      : row_bytes(columns / 8), along(kStrip * row_bytes), across(columns * kStripBytes) {}

  // bytes[kTile][kTileBytes] is the tile at (row, column) of the strip.
  void write(const uint8_t* bytes, int64_t row, int64_t column) {
    for (int64_t i = 0; i < kTile; ++i)
      std::copy(bytes + i * kTileBytes, bytes + (i + 1) * kTileBytes,
                along.data() + (row + i) * row_bytes + column / 8);
    for (int64_t i = 0; i < kTile; i += 8)
      for (int64_t b = 0; b < kTileBytes; ++b) {
        uint64_t square = 0;
        for (int64_t r = 0; r < 8; ++r)
          square |= static_cast<uint64_t>(bytes[(i + r) * kTileBytes + b]) << (8 * r);
        square = transpose_bits(square);
        for (int64_t c = 0; c < 8; ++c)
          across[(column + b * 8 + c) * kStripBytes + (row + i) / 8] =
              static_cast<uint8_t>(square >> (8 * c));
      }
  }
};

// table[16][64]: the sums ±r0 ±r1 ±r2 ±r3 of four rows of 64 columns; bit i of the index: minus.
inline void signed_sums(const float* cols16, int64_t panel_stride, float* table) {
  for (int64_t c = 0; c < kColumns; c += 8) {
    const float* row = cols16 + c / 16 * panel_stride + c % 16;
    const float8 r0 = load8(row), r1 = load8(row + 16), r2 = load8(row + 32), r3 = load8(row + 48);
    const float8 low[4] = {r0 + r1, r1 - r0, r0 - r1, -r0 - r1};
    const float8 high[4] = {r2 + r3, r3 - r2, r2 - r3, -r2 - r3};
    for (int i = 0; i < 16; ++i) store8(table + i * kColumns + c, low[i % 4] + high[i / 4]);
  }
}

// Rows of bits: which source rows are subtracted, and (null when none) whose cosine is exactly 0.
struct Signs {
  const uint8_t *minus, *zero;
  int64_t stride, bytes;
};

// Takes back what add_signed_rows added for cosines that are exactly 0, where sign is 0.
inline void undo_zeros(const Signs& signs, const float* cols16, int64_t panel_stride, int64_t rows,
                       float* out) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t b = 0; b < signs.bytes; ++b)
      for (unsigned left = signs.zero[r * signs.stride + b]; left; left &= left - 1) {
        const int bit = __builtin_ctz(left);
        const float sign = signs.minus[r * signs.stride + b] >> bit & 1 ? -1.0f : 1.0f;
        const float* source = cols16 + (b * 8 + bit) * 16;
        for (int64_t c = 0; c < kColumns; ++c)
          out[r * kColumns + c] -= sign * source[c / 16 * panel_stride + c % 16];
      }
}

// out[r][64] += sum_k ±row_k for `rows` rows of signs; row k's columns are at cols16 + 16 k.
inline void add_signed_rows(const Signs& signs, const float* cols16, int64_t panel_stride,
                            int64_t rows, float* out) {
  alignas(64) float table[4][16 * kColumns];  // sixteen source rows: 16 KiB of the L1 cache
  for (int64_t b = 0; b < signs.bytes; b += 2) {
    for (int64_t g = 0; g < 4; ++g)
      signed_sums(cols16 + (b * 8 + g * 4) * 16, panel_stride, table[g]);
    for (int64_t r = 0; r < rows; ++r) {
      const uint8_t* s = signs.minus + r * signs.stride + b;
      const float *p0 = table[0] + s[0] % 16 * kColumns, *p1 = table[1] + s[0] / 16 * kColumns;
      const float *p2 = table[2] + s[1] % 16 * kColumns, *p3 = table[3] + s[1] / 16 * kColumns;
      float* o = out + r * kColumns;
#pragma GCC unroll 8
      for (int64_t c = 0; c < kColumns; c += 8)
        store8(o + c, load8(o + c) + ((load8(p0 + c) + load8(p1 + c)) +
                                      (load8(p2 + c) + load8(p3 + c))));
    }
  }
  if (signs.zero) undo_zeros(signs, cols16, panel_stride, rows, out);
}

// Signs and zeros of one tile into the planes; returns sum |tile|.
// `rows` × `columns` of it are not padding, whose zeros are of no interest.
inline double scan_tile(const float* tile, int64_t rows, int64_t columns, int64_t row,
                        int64_t column, BitPlane& signs, BitPlane& zero,
                        std::atomic<bool>& any_zero) {
  uint8_t s[kTile * kTileBytes], z[kTile * kTileBytes], found = 0;
  double total = 0;
  for (int64_t i = 0; i < kTile; ++i) {
    float8 sum = {};
    for (int64_t b = 0; b < kTileBytes; ++b) {
      const float8 v = load8(tile + i * kTile + b * 8);
      const int64_t valid = i < rows ? std::clamp<int64_t>(columns - b * 8, 0, 8) : 0;
      sum += v < 0.0f ? -v : v;
      s[i * kTileBytes + b] = sign_bits(v);
      found |= z[i * kTileBytes + b] = zero_bits(v) & static_cast<uint8_t>((1 << valid) - 1);
    }
    for (int lane = 0; lane < 8; ++lane) total += sum[lane];
  }
  signs.write(s, row, column);
  zero.write(z, row, column);
  if (found) any_zero.store(true, std::memory_order_relaxed);
  return total;
}

// Returns sum |S|; adds sign(S)·B̂ to grad_a and sign(S)ᵀ·Â to grad_b (cols64; either may be null).
// Holds kStrip × (rows of b) bits four times and no more.
inline double orthogonality(const UnitRows& a, const UnitRows& b, float* grad_a, float* grad_b) {
  const int64_t depth = a.padded_dim, panels = depth / kColumns;
  BitPlane signs(b.padded_rows), zero(b.padded_rows);
  std::vector<double> sums(kStrip / kTile * b.blocks());
  double total = 0;
  for (int64_t start = 0; start < a.padded_rows; start += kStrip) {
    const int64_t height = std::min(kStrip, a.padded_rows - start);
    const int64_t tiles = height / kTile * b.blocks();
    std::atomic<bool> any_zero{false};
    parallel_tasks(tiles, [&](int64_t task) {
      const int64_t row = task / b.blocks() * kTile, column = task % b.blocks() * kTile;
      float tile[kTile * kTile];
      const int64_t a_rows = a.rows - start - row, b_rows = b.rows - column;
      tile_product(a.rows6.get() + (start + row) * depth, a_rows, b.rows16.get() + column * depth,
                   b_rows, depth, tile);
      sums[task] = scan_tile(tile, a_rows, b_rows, row, column, signs, zero, any_zero);
    });
    for (int64_t i = 0; i < tiles; ++i) total += sums[i];

    const int64_t tasks_a = grad_a ? panels : 0;  // 64 columns of the strip's gradient each
    const int64_t tasks_b = grad_b ? panels * ((b.padded_rows + kStrip - 1) / kStrip) : 0;
    parallel_tasks(tasks_a + tasks_b, [&](int64_t task) {
      const bool for_a = task < tasks_a;
      const UnitRows& source = for_a ? b : a;
      const int64_t column = (for_a ? task : (task - tasks_a) % panels) * kColumns;
      const int64_t row = for_a ? 0 : (task - tasks_a) / panels * kStrip;
      const int64_t below = a.rows - start;  // rows of a that are left, the strip's among them
      const int64_t rows = for_a ? std::min(height, below) : std::min(kStrip, b.rows - row);
      const int64_t sources = for_a ? b.rows : std::min(height, below);
      const auto view = [&](const BitPlane& p) {
        return for_a ? p.along.data() : p.across.data() + row * kStripBytes;
      };
      const Signs bits{view(signs), any_zero ? view(zero) : nullptr,
                       for_a ? signs.row_bytes : kStripBytes, round_up(sources, 16) / 8};
      add_signed_rows(bits,
                      source.cols16.get() + column * source.padded_rows + (for_a ? 0 : start) * 16,
                      source.padded_rows * 16, rows,
                      for_a ? grad_a + column * a.padded_rows + start * kColumns
                            : grad_b + column * b.padded_rows + row * kColumns);
    });
  }
  return total;
}

}  // namespace c2v
