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

constexpr int64_t kStrip = 11 * kTile;  // rows of S whose signs are held at a time
constexpr int64_t kStripBytes = kStrip / 8;

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

// Returns sum |S|; adds sign(S)·B̂ to grad_a and sign(S)ᵀ·Â to grad_b (cols64; either may be null).
// Holds kStrip × (rows of b) bits four times and no more.
inline double orthogonality(const UnitRows& a, const UnitRows& b, float* grad_a, float* grad_b) {
  const TileKind& kind = tiles();
  const int64_t depth = a.padded_dim, panels = depth / kColumns, wide = kind.panels.columns;
  BitPlane signs(b.padded_rows), zero(b.padded_rows);
  std::vector<double> sums(kStrip / kTile * b.blocks());
  double total = 0;
  for (int64_t start = 0; start < a.padded_rows; start += kStrip) {
    const int64_t height = std::min(kStrip, a.padded_rows - start);
    const int64_t count = height / kTile * b.blocks();
    std::atomic<bool> any_zero{false};
    parallel_tasks(count, [&](int64_t task) {
      const int64_t row = task / b.blocks() * kTile, column = task % b.blocks() * kTile;
      const int64_t a_rows = a.rows - start - row, b_rows = b.rows - column;
      float tile[kTile * kTile];
      uint8_t negative[kTile * kTileBytes], exact[kTile * kTileBytes];
      bool found;
      kind.product(a.left.get() + (start + row) * depth, a_rows, b.right.get() + column * depth,
                   b_rows, depth, tile);
      sums[task] = kind.scan(tile, a_rows, b_rows, negative, exact, &found);
      signs.write(negative, row, column);
      zero.write(exact, row, column);
      if (found) any_zero.store(true, std::memory_order_relaxed);
    });
    for (int64_t i = 0; i < count; ++i) total += sums[i];

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
      kind.add_signed_rows(
          bits, source.columns.get() + column * source.padded_rows + (for_a ? 0 : start) * wide,
          source.padded_rows * wide, rows,
          for_a ? grad_a + column * a.padded_rows + start * kColumns
                : grad_b + column * b.padded_rows + row * kColumns);
    });
  }
  return total;
}

}  // namespace c2v
