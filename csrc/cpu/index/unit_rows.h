// Rows divided by their lengths (or as they are, or divided before), packed for products.h; and the way
// back, from the gradient for a packed row to the gradient for the row itself.
#pragma once

#include <cmath>
#include <limits>
#include <memory>

#include "products.h"

namespace c2v {

constexpr float kSmallest = 1e-8f;  // cos(a, b) = <a, b> / max(|a||b|, kSmallest)

using FloatArray = std::unique_ptr<float[]>;
inline FloatArray floats(int64_t n) { return std::make_unique_for_overwrite<float[]>(n); }
inline FloatArray zeros(int64_t n) { return std::make_unique<float[]>(n); }

inline float dot(const float* a, const float* b, int64_t n) {  // n is a multiple of 16
  float8 even = {}, odd = {};
  for (int64_t i = 0; i < n; i += 16) {
    even += load8(a + i) * load8(b + i);
    odd += load8(a + i + 8) * load8(b + i + 8);
  }
  const float8 s = even + odd;
  return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
}

// x as float32 in contiguous rows; the tensor itself when it is so already.
inline Tensor float_rows(const Tensor& x) {
  const Tensor f = x.scalar_type() == ScalarType::Float ? x
                                                        : torch::stable::to(x, ScalarType::Float);
  return torch::stable::contiguous(f);
}

enum Layouts { kLeft = 1, kRight = 2, kBoth = 3 };  // of a product; columns always

// What a row is multiplied by when it is not normalised: 1, but 0 for a zero row (whose gradient
// this masks) and NaN for one that is not finite, whose gradient would be finite otherwise.
inline float scale_as_it_is(const float* row, int64_t padded_dim) {
  float8 largest = {}, zero = {};
  for (int64_t k = 0; k < padded_dim; k += 8) {
    const float8 x = load8(row + k), size = x < 0.0f ? -x : x;
    largest = size > largest ? size : largest;
    zero += 0.0f * x;
  }
  bool any = false;
  float not_finite = 0;
  for (int lane = 0; lane < 8; ++lane) {
    any |= largest[lane] > 0;
    not_finite += zero[lane];
  }
  return any ? 1 + not_finite : not_finite;
}

struct UnitRows {
  int64_t rows, dim;                // as given
  int64_t padded_rows, padded_dim;  // multiples of kTile and kColumns
  Tensor source;                    // [rows, dim] float32, which keeps `data` alive
  const float* data;
  bool normalised;                  // false: the rows as they are
  FloatArray norm, inverse;         // [padded_rows]; both 0 for a zero row
  float shortest;                   // smallest norm that is not 0; infinity when there is none
  FloatArray left, right, columns;  // see tiles/shape.h
  int64_t blocks() const { return padded_rows / kTile; }

  // With `known` [rows], x has the unit rows of others that were so long.
  UnitRows(const Tensor& x, Layouts layouts, bool normalise = true, const float* known = nullptr)
      : rows(x.size(0)),
        dim(x.size(1)),
        padded_rows(round_up(rows, kTile)),
        padded_dim(round_up(dim, kColumns)),
        source(float_rows(x)),
        data(source.const_data_ptr<float>()),
        normalised(normalise),
        norm(zeros(padded_rows)),
        inverse(zeros(padded_rows)),
        shortest(std::numeric_limits<float>::infinity()),
        left(layouts & kLeft ? floats(padded_rows * padded_dim) : nullptr),
        right(layouts & kRight ? floats(padded_rows * padded_dim) : nullptr),
        columns(floats(padded_rows * padded_dim)) {
    if (known) std::copy_n(known, rows, norm.get());
    parallel_tasks(blocks(), [&](int64_t block) { pack(block, known); });
    for (int64_t i = 0; i < rows; ++i)
      if (norm[i] > 0) shortest = std::min(shortest, norm[i]);
  }

  const float* row(int64_t i) const { return data + i * dim; }

  // unit[padded_dim] = row i as it was packed, zero padded.
  void unit_row(int64_t i, float* unit) const {
    const float *x = row(i), scale = inverse[i];
    for (int64_t k = 0; k < dim; ++k) unit[k] = x[k] * scale;
    std::fill(unit + dim, unit + padded_dim, 0.0f);
  }

  // out[rows][dim] = the gradient for the rows, given g (cols64), that for the packed rows:
  // scale (g - û<g, û>) / |row|, or scale g where rows were not normalised.
  void through_normalisation(const float* g, float scale, float* out) const {
    torch::stable::parallel_for(0, rows, 16, [&](int64_t begin, int64_t end) {
      const FloatArray unit = floats(padded_dim), of_unit = floats(padded_dim);
      for (int64_t i = begin; i < end; ++i) {
        unit_row(i, unit.get());
        for (int64_t k = 0; k < padded_dim; k += kColumns)
          std::copy_n(g + k * padded_rows + i * kColumns, kColumns, of_unit.get() + k);
        const float along = normalised ? dot(of_unit.get(), unit.get(), padded_dim) : 0;
        const float factor = scale * inverse[i];
        for (int64_t k = 0; k < dim; ++k)
          out[i * dim + k] = factor * (of_unit[k] - unit[k] * along);
      }
    });
  }

 private:
  void pack(int64_t block, bool known) {
    const FloatArray unit = zeros(kTile * padded_dim);
    const int64_t first = block * kTile, last = std::min(first + kTile, rows);
    for (int64_t i = first; i < last; ++i) {
      float* u = unit.get() + (i - first) * padded_dim;
      std::copy(row(i), row(i) + dim, u);
      if (!known) norm[i] = normalised ? std::sqrt(dot(u, u, padded_dim)) : 1;
      // An infinite norm would turn finite elements into silent zeros: let it be NaN.
      inverse[i] = !normalised || known   ? scale_as_it_is(u, padded_dim)
                   : norm[i] == 0         ? 0
                   : std::isinf(norm[i]) ? NAN
                                          : 1 / norm[i];
      const float scale = inverse[i];
      for (int64_t k = 0; k < dim; ++k) u[k] *= scale;
    }
    const PanelSizes& panels = tiles().panels;
    if (left) std::copy_n(unit.get(), kTile * padded_dim, left.get() + first * padded_dim);
    if (right) tiles().pack_right(unit.get(), padded_dim, right.get() + first * padded_dim);
    for (int64_t i = 0; i < kTile; ++i) {
      const float* u = unit.get() + i * padded_dim;
      for (int64_t k = 0; k < padded_dim; k += panels.columns)
        std::copy_n(u + k, panels.columns,
                    columns.get() + k * padded_rows + (first + i) * panels.columns);
    }
  }
};

}  // namespace c2v
