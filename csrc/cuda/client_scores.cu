// client_scores: the cohort's weighted sum of unit rows, then one read of the index, a warp a
// row. Formula: c2v_sim/ops/client_scores.py.
//
// Sums are float32 lanes added by a butterfly, repeated in float64 for rows whose squares leave
// float32's range; all orders are fixed, so the bits are the same in every run.
#include "device.h"

namespace c2v {
namespace {

constexpr int kWarp = 32, kWarps = 8, kThreads = kWarp * kWarps;

template <class F>
struct Products {
  F dot, squared;  // <row, direction>, <row, row>
};

template <class F, int kWidth, class T>
__device__ inline Products<F> warp_products(const T* row, const float* direction, int64_t size) {
  const int lane = threadIdx.x % kWarp;
  Products<F> sum{0, 0};
  for (int64_t i = kWidth * lane; i < size; i += kWidth * kWarp) {
    const auto x = load<kWidth>(row + i);
    Pack<float, kWidth> d = {};
    if (direction) d = load<kWidth>(direction + i);
    for (int j = 0; j < kWidth; ++j) {
      const F value = to_float(x.v[j]);
      sum.dot += value * d.v[j];
      sum.squared += value * value;
    }
  }
  for (int step = kWarp / 2; step > 0; step /= 2) {
    sum.dot += __shfl_xor_sync(0xffffffffu, sum.dot, step);
    sum.squared += __shfl_xor_sync(0xffffffffu, sum.squared, step);
  }
  return sum;
}

template <int kWidth, class T>
__device__ inline Products<double> products(const T* row, const float* direction, int64_t size) {
  const auto sum = warp_products<float, kWidth>(row, direction, size);
  if (sum.squared > 1e-25f && sum.squared < 1e30f) return {sum.dot, sum.squared};
  return warp_products<double, kWidth>(row, direction, size);  // the whole warp takes this way
}

template <int kWidth, class T>
__device__ inline double cosine(const T* row, const float* direction, int64_t size) {
  const auto sum = products<kWidth>(row, direction, size);
  return sum.squared == 0 ? 0 * sum.dot : sum.dot / sqrt(sum.squared);  // 0 * NaN stays NaN
}

__device__ inline int64_t warp_index() {
  return blockIdx.x * static_cast<int64_t>(kWarps) + threadIdx.x / kWarp;
}

template <class T, int kWidth>
__global__ void coefficients_kernel(const T* index, int64_t stride, int64_t size,
                                    const int64_t* cohort, const float* omega, int64_t members,
                                    double* coefficients) {
  const int64_t j = warp_index();
  if (j >= members) return;
  const double squared = products<kWidth>(index + cohort[j] * stride, nullptr, size).squared;
  if (threadIdx.x % kWarp == 0) coefficients[j] = squared == 0 ? 0 : omega[j] / sqrt(squared);
}

template <class T>
__global__ void partial_direction_kernel(const T* index, int64_t stride, int64_t size,
                                         const int64_t* cohort, const double* coefficients,
                                         int64_t members, float* partial) {
  const int64_t column = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  const int64_t first = blockIdx.y * kCohortChunk;
  if (column >= size) return;
  float sum = 0;
  for (int64_t j = first; j < first + kCohortChunk && j < members; ++j) {
    // float64: the coefficient of a tiny row is beyond float32
    sum += static_cast<float>(coefficients[j] * to_float(index[cohort[j] * stride + column]));
  }
  partial[blockIdx.y * size + column] = sum;
}

__global__ void direction_kernel(const float* partial, int64_t chunks, int64_t size,
                                 float* direction) {
  const int64_t column = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (column >= size) return;
  double sum = 0;
  for (int64_t c = 0; c < chunks; ++c) sum += partial[c * size + column];
  direction[column] = static_cast<float>(sum);
}

template <class T, int kWidth>
__global__ void client_scores_kernel(const T* features, int64_t feature_stride,
                                     int64_t feature_size, const T* labels, int64_t label_stride,
                                     int64_t label_size, int64_t clients,
                                     const float* along_features, const float* along_labels,
                                     float* scores) {
  const int64_t i = warp_index();
  if (i >= clients) return;
  double score = cosine<kWidth>(features + i * feature_stride, along_features, feature_size);
  if (labels) {
    score = 0.5 * (score + cosine<kWidth>(labels + i * label_stride, along_labels, label_size));
  }
  if (threadIdx.x % kWarp == 0) scores[i] = static_cast<float>(score);
}

}  // namespace

const char* cohort_direction_cuda(Storage storage, Matrix index, const int64_t* cohort,
                                  const float* omega, int64_t members, double* coefficients,
                                  float* partial, float* direction, void* stream) {
  const int64_t chunks = divide_up(members, kCohortChunk);
  if (chunks > 65535) return "more than 4 million cohort members";  // the grid's second dimension
  const bool wide = packs_of_four(index, storage_bytes(storage));
  const unsigned column_blocks = divide_up(index.size, kThreads);
  with_storage(storage, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const T* data = static_cast<const T*>(index.data);
    const auto kernel = wide ? coefficients_kernel<T, 4> : coefficients_kernel<T, 1>;
    C2V_LAUNCH(kernel, static_cast<unsigned>(divide_up(members, kWarps)), kThreads, stream, data,
               index.stride, index.size, cohort, omega, members, coefficients);
    C2V_LAUNCH(partial_direction_kernel<T>, dim3(column_blocks, static_cast<unsigned>(chunks)),
               kThreads, stream, data, index.stride, index.size, cohort, coefficients, members,
               partial);
  });
  C2V_LAUNCH(direction_kernel, column_blocks, kThreads, stream, partial, chunks, index.size,
             direction);
  return launch_error();
}

const char* client_scores_cuda(Storage storage, Matrix features, Matrix labels, int64_t clients,
                               const float* along_features, const float* along_labels,
                               float* scores, void* stream) {
  const int64_t bytes = storage_bytes(storage);
  const bool wide = packs_of_four(features, bytes) && (!labels.data || packs_of_four(labels, bytes));
  const unsigned blocks = divide_up(clients, kWarps);
  with_storage(storage, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto kernel = wide ? client_scores_kernel<T, 4> : client_scores_kernel<T, 1>;
    C2V_LAUNCH(kernel, blocks, kThreads, stream, static_cast<const T*>(features.data),
               features.stride, features.size, static_cast<const T*>(labels.data), labels.stride,
               labels.size, clients, along_features, along_labels, scores);
  });
  return launch_error();
}

}  // namespace c2v
