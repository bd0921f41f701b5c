// weighted_sum: a thread sums one pack of columns over the rows, in ascending k; no reduction
// between threads, so the bits do not depend on the launch.
#include "device.h"

namespace c2v {
namespace {

constexpr int kThreads = 256;

template <class T, int kWidth>
__global__ void weighted_sum_kernel(const T* arena, int64_t stride, const float* weights,
                                    int64_t rows, int64_t size, float* out) {
  const int64_t column = kWidth * (blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x);
  if (column >= size) return;
  Pack<float, kWidth> sum = {};
#pragma unroll 4
  for (int64_t k = 0; k < rows; ++k) {
    const float weight = weights[k];
    const auto x = load<kWidth>(arena + k * stride + column);
    for (int j = 0; j < kWidth; ++j) sum.v[j] += weight * to_float(x.v[j]);
  }
  store<kWidth>(out + column, sum);
}

}  // namespace

const char* weighted_sum_cuda(Storage storage, Matrix arena, int64_t rows, const float* weights,
                              float* out, void* stream) {
  const Matrix result{out, 0, arena.size};
  const bool wide = packs_of_four(arena, storage_bytes(storage)) && packs_of_four(result, 4);
  const unsigned blocks = divide_up(arena.size, (wide ? 4 : 1) * kThreads);
  with_storage(storage, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto kernel = wide ? weighted_sum_kernel<T, 4> : weighted_sum_kernel<T, 1>;
    C2V_LAUNCH(kernel, blocks, kThreads, stream, static_cast<const T*>(arena.data), arena.stride,
               weights, rows, arena.size, out);
  });
  return launch_error();
}

}  // namespace c2v
