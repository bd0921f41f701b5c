// L_div = 1/n sum_j log s_j, s_j = sum_{k≠j} E_jk, E = exp(ÛÛᵀ), and its gradient for the unit rows
//   n · G_j = sum_k E_jk (1/s_j + 1/s_k) û_k.
//
// E is symmetric, so a strip of kStrip rows is formed from the strip's first column on, and serves
// the rows below through its transpose. All s must be known before any G, and E is not kept: the
// strips are formed from the last to the first for s, then from the first to the last for G. The
// first strip, by far the largest part of the triangle, is still there when G begins.
#pragma once

#include <vector>

#include "orthogonality.h"

namespace c2v {

class Diversity {
 public:
  explicit Diversity(const UnitRows& unit_rows)
      : u(unit_rows),
        strips((u.padded_rows + kStrip - 1) / kStrip),
        strip(floats(std::min(kStrip, u.padded_rows) * u.padded_rows)),
        inverse_sum(zeros(u.padded_rows)) {}

  // The loss; adds n·G to grad (cols64) unless that is null.
  double run(float* grad) {
    std::vector<double> sums(u.padded_rows);
    for (int64_t s = strips - 1; s >= 0; --s) {
      form(s * kStrip);
      add_sums(s * kStrip, sums.data());
    }
    double loss = 0;
    for (int64_t j = 0; j < u.rows; ++j) {
      loss += std::log(sums[j]);
      inverse_sum[j] = static_cast<float>(1 / sums[j]);
    }
    for (int64_t s = 0; grad && s < strips; ++s) {
      if (s > 0) form(s * kStrip);
      add_gradients(s * kStrip, grad);
    }
    return loss / static_cast<double>(u.rows);
  }

 private:
  const TileKind& kind = tiles();
  const UnitRows& u;
  const int64_t strips;
  FloatArray strip;  // [kStrip][padded_rows], columns from the strip's first row on
  FloatArray inverse_sum;

  int64_t end(int64_t start) const { return std::min(start + kStrip, u.padded_rows); }

  // E of rows start … end(start), columns from `start` on; 0 on the diagonal and in the padding.
  void form(int64_t start) {
    const int64_t first = start / kTile, last = end(start) / kTile, width = u.blocks() - first;
    parallel_tasks((last - first) * width, [&](int64_t task) {
      const int64_t i = first + task / width, k = first + task % width;
      if (k < i) return;  // written by the task of its mirror image
      float tile[kTile * kTile];
      kind.product(u.left.get() + i * kTile * u.padded_dim, u.rows - i * kTile,
                   u.right.get() + k * kTile * u.padded_dim, u.rows - k * kTile, u.padded_dim,
                   tile);
      kind.exp(tile);
      mask(tile, i * kTile, k * kTile);
      float* to = strip.get() + (i * kTile - start) * u.padded_rows + k * kTile;
      for (int64_t r = 0; r < kTile; ++r)
        std::copy(tile + r * kTile, tile + (r + 1) * kTile, to + r * u.padded_rows);
      if (k == i || k >= last) return;
      to = strip.get() + (k * kTile - start) * u.padded_rows + i * kTile;
      for (int64_t r = 0; r < kTile; ++r)
        for (int64_t c = 0; c < kTile; ++c) to[r * u.padded_rows + c] = tile[c * kTile + r];
    });
  }

  void mask(float* tile, int64_t row, int64_t column) const {
    for (int64_t r = 0; r < kTile; ++r) {
      if (row == column) tile[r * kTile + r] = 0;
      const int64_t valid = row + r < u.rows ? std::min(kTile, u.rows - column) : 0;
      std::fill(tile + r * kTile + valid, tile + (r + 1) * kTile, 0.0f);
    }
  }

  // Row sums for the strip's own rows, column sums for the rows below it.
  void add_sums(int64_t start, double* sums) const {
    const int64_t stop = end(start);
    parallel_tasks((u.padded_rows - start) / kTile, [&](int64_t task) {
      const int64_t row = start + task * kTile;
      if (row < stop) {
        for (int64_t j = row; j < row + kTile; ++j)
          for (int64_t k = start; k < u.padded_rows; k += kTile)
            sums[j] += sum(strip.get() + (j - start) * u.padded_rows + k);
        return;
      }
      for (int64_t j = 0; j < stop - start; j += kTile) {
        float below[kTile] = {};  // in float32 over one tile, in float64 over tiles
        for (int64_t r = j; r < j + kTile; ++r)
          for (int64_t c = 0; c < kTile; ++c) below[c] += strip[r * u.padded_rows + row + c];
        for (int64_t c = 0; c < kTile; ++c) sums[row + c] += below[c];
      }
    });
  }

  static float sum(const float* x) {  // of kTile values
    float8 s = {};
    for (int64_t i = 0; i < kTile; i += 8) s += load8(x + i);
    return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
  }

  // G for kTile rows: the strip's own (from all columns) or below it (from the strip's rows).
  void add_gradients(int64_t start, float* grad) const {
    const int64_t stop = end(start), parts = 2, wide = kind.panels.columns;
    const int64_t panels = u.padded_dim / wide, most = kind.panels.depth;
    parallel_tasks((u.padded_rows - start) / kTile * parts, [&](int64_t task) {
      const int64_t row = start + task / parts * kTile, part = task % parts;
      const int64_t last = std::min(u.rows, row < stop ? u.rows : stop);
      const FloatArray w = floats(kTile * most);
      for (int64_t k = start; k < last; k += most) {
        const int64_t depth = std::min(most, last - k);
        pack_weights(start, row, k, depth, w.get());
        kind.accumulate(w.get(), u.columns.get() + k * wide, u.padded_rows, depth,
                        part * panels / parts, (part + 1) * panels / parts, grad + row * kColumns,
                        std::min(kTile, u.rows - row));
      }
    });
  }

  // w[kTile / m][depth][m] = E_jk (1/s_j + 1/s_k) for rows j from `row` on and k … k + depth.
  void pack_weights(int64_t start, int64_t row, int64_t k, int64_t depth, float* w) const {
    const bool below = row >= end(start);  // then E_jk is found at column j of row k
    const float* e = below ? strip.get() + (k - start) * u.padded_rows + row
                           : strip.get() + (row - start) * u.padded_rows + k;
    const int64_t j_stride = below ? 1 : u.padded_rows, k_stride = below ? u.padded_rows : 1;
    const int64_t m = kind.panels.weights;
    for (int64_t j = 0; j < kTile; j += m)
      for (int64_t d = 0; d < depth; ++d, w += m)
        for (int64_t i = 0; i < m; ++i)
          w[i] = e[(j + i) * j_stride + d * k_stride] *
                 (inverse_sum[row + j + i] + inverse_sum[k + d]);
  }
};

}  // namespace c2v
