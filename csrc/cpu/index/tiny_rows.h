// Cosines of rows so short that |a||b| < 1e-8 for some pair. There cos is <a, b>/1e-8, no longer
// the product of unit rows, and its gradient has no projection. Real data never comes here, so
// this is the definition written as plain loops: exact, O(rows · dim) memory, slow.
#pragma once

#include <vector>

#include "unit_rows.h"

namespace c2v {

inline bool has_tiny_pairs(const UnitRows& a, const UnitRows& b) {
  return a.shortest * b.shortest < kSmallest;
}

inline FloatArray plain_unit_rows(const UnitRows& x) {  // [rows][padded_dim]
  FloatArray unit = floats(x.rows * x.padded_dim);
  for (int64_t i = 0; i < x.rows; ++i) x.unit_row(i, unit.get() + i * x.padded_dim);
  return unit;
}

// cos(a, b) is this times the product of the unit rows.
inline float shortening(float norm_a, float norm_b) {
  return std::min(1.0f, norm_a * norm_b / kSmallest);
}

// sums[j] = sum_k value(j, k, cos(a_j, b_k)).
template <class Value>
std::vector<double> sums_of_tiny(const UnitRows& a, const UnitRows& b, const Value& value) {
  const FloatArray unit_a = plain_unit_rows(a), unit_b = plain_unit_rows(b);
  std::vector<double> sums(a.rows);
  parallel_tasks(a.rows, [&](int64_t j) {
    for (int64_t k = 0; k < b.rows; ++k) {
      const float cosine = dot(unit_a.get() + j * a.padded_dim, unit_b.get() + k * a.padded_dim,
                               a.padded_dim);
      sums[j] += value(j, k, cosine * shortening(a.norm[j], b.norm[k]));
    }
  });
  return sums;
}

// Adds to out[rows][dim] scale · gradient for a of sum_{j,k} value; weight(j, k, cos) = value'.
template <class Weight>
void gradient_of_tiny(const UnitRows& a, const UnitRows& b, float scale, const Weight& weight,
                      float* out) {
  const FloatArray unit_a = plain_unit_rows(a), unit_b = plain_unit_rows(b);
  parallel_tasks(a.rows, [&](int64_t j) {
    const FloatArray g = zeros(a.padded_dim);
    const float* unit = unit_a.get() + j * a.padded_dim;
    float along = 0;
    for (int64_t k = 0; k < b.rows; ++k) {
      const float* other = unit_b.get() + k * a.padded_dim;
      const float cosine = dot(unit, other, a.padded_dim);
      const float factor = shortening(a.norm[j], b.norm[k]);
      const float w = weight(j, k, cosine * factor);
      if (factor == 1) along += w * cosine;
      for (int64_t i = 0; i < a.dim; ++i) g[i] += w * factor * other[i];
    }
    for (int64_t i = 0; i < a.dim; ++i)
      out[j * a.dim + i] += scale * a.inverse[j] * (g[i] - unit[i] * along);
  });
}

inline double absolute_sum_of_tiny(const UnitRows& a, const UnitRows& b) {
  double total = 0;
  for (double s : sums_of_tiny(a, b, [](int64_t, int64_t, float c) { return std::abs(c); }))
    total += s;
  return total;
}

inline void absolute_gradient_of_tiny(const UnitRows& a, const UnitRows& b, float scale,
                                      float* out) {
  const auto sign = [](int64_t, int64_t, float c) { return c > 0 ? 1.0f : c < 0 ? -1.0f : c; };
  gradient_of_tiny(a, b, scale, sign, out);
}

}  // namespace c2v
