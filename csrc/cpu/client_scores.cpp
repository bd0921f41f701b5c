// client_scores: s = (F F^T + G G^T) omega / 2 with unit rows F, G of the two indices; formula in
// c2v_sim/ops/client_scores.py. First the cohort's weighted sum of unit rows (the direction),
// then one read of the index: a row's dot product with it and the row's own length.
//
// Sums have a fixed order (lanes within a row, cohort blocks in sequence): the bits are those of
// any thread count.
#include "../ops.h"

#include <cmath>
#include <optional>
#include <vector>

namespace c2v {
namespace {

constexpr int64_t kCohortBlock = 32;   // cohort rows summed by one thread
constexpr int64_t kAhead = 2048;        // bytes: a row of the paper's index
constexpr int64_t kGrain = 32;         // rows that repay waking a thread

struct Products {
  double dot, squared;  // <row, direction>, <row, row>
};

template <class T>
Products products64(const T* row, const float* direction, int64_t size) {
  Products sum{0, 0};
  for (int64_t i = 0; i < size; ++i) {
    const double x = to_float(row[i]);
    sum.dot += x * direction[i];
    sum.squared += x * x;
  }
  return sum;
}

inline float add_lanes(const Floats& v) {
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

// Four independent sums each, to hide the latency of an addition.
struct Sums {
  Floats dot[4] = {}, squared[4] = {};

  template <class T>
  void add(const T* row, const float* direction) {  // 32 elements
    for (int j = 0; j < 4; ++j) {
      const Floats x = load_floats(row + 8 * j);
      dot[j] += x * load_floats(direction + 8 * j);
      squared[j] += x * x;
    }
  }

  // The last 1..31 elements, as if zeros followed: rows of few numbers are nothing else.
  template <class T>
  void add_rest(const T* row, const float* direction, int64_t size) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const int64_t left = size - 8 * j;
      if (left <= 0) return;
      float x[8] = {}, d[8] = {};
      if (left < 8)
        for (int64_t i = 0; i < left; ++i) x[i] = to_float(row[8 * j + i]), d[i] = direction[8 * j + i];
      const Floats a = left < 8 ? load_floats(x) : load_floats(row + 8 * j);
      dot[j] += a * (left < 8 ? load_floats(d) : load_floats(direction + 8 * j));
      squared[j] += a * a;
    }
  }
};

// In float32, repeated in float64 where squares leave its range (or are zero, or not finite).
template <class T>
Products products(const T* row, const float* direction, int64_t size) {
  Sums sums;
  int64_t i = 0;
  for (; i + 32 <= size; i += 32) {
    // The next rows: the hardware's own prefetching stops at the end of a page.
    for (int64_t line = 0; line < 32; line += 64 / sizeof(T))
      __builtin_prefetch(row + i + kAhead / sizeof(T) + line);
    sums.add(row + i, direction + i);
  }
  if (i < size) sums.add_rest(row + i, direction + i, size - i);
  const auto total = [](const Floats* v) { return add_lanes((v[0] + v[1]) + (v[2] + v[3])); };
  const float dot = total(sums.dot), squared = total(sums.squared);
  if (squared > 1e-25f && squared < 1e30f) return {dot, squared};
  return products64(row, direction, size);
}

inline double cosine(const Products& p) {
  return p.squared == 0 ? p.dot * 0 : p.dot / std::sqrt(p.squared);  // 0 * NaN stays NaN
}

template <class T>
struct Index {
  const T* data;
  int64_t stride, size;
  explicit Index(const Tensor& t)
      : data(static_cast<const T*>(t.const_data_ptr())), stride(t.stride(0)), size(t.size(1)) {}
  const T* row(int64_t i) const { return data + i * stride; }
};

// Cohort rows lie far apart, which no hardware foresees: fetch the next while summing this one.
template <class T>
inline void prefetch(const T* row, int64_t size) {
  const int64_t step = 64 / sizeof(T);  // a cache line
  for (int64_t i = 0; i < size; i += step) __builtin_prefetch(row + i);
}

// sum_j omega_j * unit(row cohort_j)
template <class T>
std::vector<float> cohort_direction(const Index<T>& index, const int64_t* cohort,
                                    const float* omega, int64_t members) {
  const int64_t blocks = (members + kCohortBlock - 1) / kCohortBlock, size = index.size;
  const std::vector<float> zeros(size, 0.0f);
  std::vector<float> partial(blocks * size, 0.0f);
  torch::stable::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      float* sum = partial.data() + b * size;
      for (int64_t j = b * kCohortBlock; j < std::min(members, (b + 1) * kCohortBlock); ++j) {
        const T* row = index.row(cohort[j]);
        if (j + 1 < members) prefetch(index.row(cohort[j + 1]), size);
        const double squared = products(row, zeros.data(), size).squared;
        if (squared == 0) continue;
        // The factor may be beyond float32 for a tiny row; the product is at most omega_j.
        const double factor = omega[j] / std::sqrt(squared);
        if (factor < 1e30) {
          const float f = static_cast<float>(factor);
#pragma omp simd
          for (int64_t i = 0; i < size; ++i) sum[i] += f * to_float(row[i]);
        } else {
          for (int64_t i = 0; i < size; ++i) sum[i] += static_cast<float>(factor * to_float(row[i]));
        }
      }
    }
  });
  std::vector<double> sum(size, 0.0);
  for (int64_t b = 0; b < blocks; ++b) {
    const float* block = partial.data() + b * size;
#pragma omp simd
    for (int64_t i = 0; i < size; ++i) sum[i] += block[i];
  }
  return std::vector<float>(sum.begin(), sum.end());
}

template <class T>
void scores(const Tensor& features, const std::optional<Tensor>& labels, const int64_t* cohort,
            const float* omega, int64_t members, float* out) {
  const Index<T> f(features), l(labels ? *labels : features);
  const bool both = labels.has_value();
  const std::vector<float> along_f = cohort_direction(f, cohort, omega, members);
  const std::vector<float> along_l =
      both ? cohort_direction(l, cohort, omega, members) : std::vector<float>();
  torch::stable::parallel_for(0, features.size(0), kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {  // both indices in turn: two streams from memory
      double score = cosine(products(f.row(i), along_f.data(), f.size));
      if (both) score = 0.5 * (score + cosine(products(l.row(i), along_l.data(), l.size)));
      out[i] = static_cast<float>(score);
    }
  });
}

Tensor with_adjacent_elements(const Tensor& t) {
  return t.size(1) < 2 || t.stride(1) == 1 ? t : torch::stable::contiguous(t);
}

}  // namespace

Tensor client_scores_cpu(const Tensor& feature_index, const std::optional<Tensor>& label_index,
                         const Tensor& cohort, const Tensor& omega) {
  STD_TORCH_CHECK(omega.scalar_type() == ScalarType::Float, "client_scores: omega must be float32");
  const Tensor features = with_adjacent_elements(feature_index);
  const std::optional<Tensor> labels =
      label_index ? std::optional<Tensor>(with_adjacent_elements(*label_index)) : std::nullopt;
  const Tensor ids = torch::stable::contiguous(cohort), weights = torch::stable::contiguous(omega);
  Tensor out = torch::stable::new_empty(features, {features.size(0)}, ScalarType::Float);
  with_storage_type(features.scalar_type(), "client_scores", [&](auto* type) {
    scores<std::remove_pointer_t<decltype(type)>>(
        features, labels, ids.const_data_ptr<int64_t>(), weights.const_data_ptr<float>(),
        ids.size(0), out.mutable_data_ptr<float>());
  });
  return out;
}

}  // namespace c2v

STABLE_TORCH_LIBRARY_IMPL(c2v_sim, CPU, m) {
  m.impl("client_scores", TORCH_BOX(&c2v::client_scores_cpu));
}
