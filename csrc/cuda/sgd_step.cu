// sgd_step: one pass over the arena; clipping adds a pass that sums squared norms. Formula:
// c2v_sim/ops/sgd_step.py.
//
// Norms are float64 partial sums of fixed blocks, added in a fixed order: no atomics, the same
// bits in every run. Absent tensors are null, a branch that is the same for all threads.
#include "device.h"

namespace c2v {
namespace {

constexpr int kThreads = 256;
constexpr float kClipEpsilon = 1e-6f;  // of torch.nn.utils.clip_grad_norm_

struct Rows {
  float *params, *grads, *buffer;
  const float *options, *linear, *anchor;
  int64_t params_stride, grads_stride, buffer_stride, options_stride, linear_stride, anchor_stride;
  int64_t size;
};

// Gradient of the local objective at `column`: grads + linear + proximal * (params - anchor).
template <int kWidth>
__device__ inline Pack<float, kWidth> objective_gradient(const Rows& a, int64_t row,
                                                         int64_t column) {
  auto d = load<kWidth>(a.grads + row * a.grads_stride + column);
  if (a.linear) {
    const auto x = load<kWidth>(a.linear + row * a.linear_stride + column);
    for (int j = 0; j < kWidth; ++j) d.v[j] += x.v[j];
  }
  if (a.anchor) {
    const float proximal = a.options[row * a.options_stride + 3];
    const auto p = load<kWidth>(a.params + row * a.params_stride + column);
    const auto x = load<kWidth>(a.anchor + row * a.anchor_stride + column);
    for (int j = 0; j < kWidth; ++j) d.v[j] += proximal * (p.v[j] - x.v[j]);
  }
  return d;
}

// The sum of `value` over the block's threads, in a fixed tree; valid in thread 0.
__device__ inline double block_sum(double value) {
  __shared__ double sums[kThreads];
  sums[threadIdx.x] = value;
  __syncthreads();
  for (int width = kThreads / 2; width > 0; width /= 2) {
    if (threadIdx.x < width) sums[threadIdx.x] += sums[threadIdx.x + width];
    __syncthreads();
  }
  return sums[0];
}

template <int kWidth>
__global__ void sgd_norm_kernel(Rows a, double* partial) {
  const int64_t row = blockIdx.y, first = blockIdx.x * kNormBlock;
  const int64_t last = first + kNormBlock < a.size ? first + kNormBlock : a.size;
  double sum = 0;
  for (int64_t c = first + kWidth * threadIdx.x; c < last; c += kWidth * kThreads) {
    const auto d = objective_gradient<kWidth>(a, row, c);
    for (int j = 0; j < kWidth; ++j) sum += static_cast<double>(d.v[j]) * d.v[j];
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[row * gridDim.x + blockIdx.x] = sum;
}

__global__ void sgd_scale_kernel(Rows a, const double* partial, int64_t blocks, float* scales) {
  const int64_t row = blockIdx.x;
  double sum = 0;
  for (int64_t b = threadIdx.x; b < blocks; b += kThreads) sum += partial[row * blocks + b];
  sum = block_sum(sum);
  if (threadIdx.x == 0) {
    const float max_norm = a.options[row * a.options_stride + 4];
    const float scale = max_norm / (static_cast<float>(sqrt(sum)) + kClipEpsilon);
    scales[row] = scale > 1.0f ? 1.0f : scale;  // NaN stays NaN
  }
}

template <int kWidth>
__global__ void sgd_step_kernel(Rows a, const float* scales, bool zero_grads) {
  const int64_t row = blockIdx.y;
  const int64_t column = kWidth * (blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x);
  if (column >= a.size) return;
  const float* option = a.options + row * a.options_stride;
  const float lr = option[0], weight_decay = option[1], momentum = option[2];
  const float scale = scales ? scales[row] : 1.0f;
  float* p_at = a.params + row * a.params_stride + column;
  auto d = objective_gradient<kWidth>(a, row, column);
  auto p = load<kWidth>(p_at);
  for (int j = 0; j < kWidth; ++j) d.v[j] = d.v[j] * scale + weight_decay * p.v[j];
  if (a.buffer) {
    float* b_at = a.buffer + row * a.buffer_stride + column;
    const auto b = load<kWidth>(b_at);
    for (int j = 0; j < kWidth; ++j) d.v[j] += momentum * b.v[j];
    store<kWidth>(b_at, d);
  }
  for (int j = 0; j < kWidth; ++j) p.v[j] -= lr * d.v[j];
  store<kWidth>(p_at, p);
  if (zero_grads) store<kWidth>(a.grads + row * a.grads_stride + column, Pack<float, kWidth>{});
}

template <int kWidth>
void launch(const Rows& a, int64_t rows, bool clip, bool zero_grads, double* partial, float* scales,
            void* stream) {
  const unsigned count = rows;
  if (clip) {
    const unsigned blocks = divide_up(a.size, kNormBlock);
    C2V_LAUNCH(sgd_norm_kernel<kWidth>, dim3(blocks, count), kThreads, stream, a, partial);
    C2V_LAUNCH(sgd_scale_kernel, count, kThreads, stream, a, partial, blocks, scales);
  }
  const unsigned blocks = divide_up(a.size, kWidth * kThreads);
  C2V_LAUNCH(sgd_step_kernel<kWidth>, dim3(blocks, count), kThreads, stream, a,
             clip ? scales : nullptr, zero_grads);
}

}  // namespace

const char* sgd_step_cuda(Matrix params, Matrix grads, Matrix buffer, Matrix options, Matrix linear,
                          Matrix anchor, int64_t rows, bool clip, bool zero_grads, double* partial,
                          float* scales, void* stream) {
  if (rows > 65535) return "more than 65535 rows";  // the grid's second dimension
  const auto data = [](const Matrix& m) { return static_cast<float*>(m.data); };
  const Rows a{data(params),  data(grads),  data(buffer),  data(options),  data(linear),
               data(anchor),  params.stride, grads.stride, buffer.stride,  options.stride,
               linear.stride, anchor.stride, params.size};
  bool wide = true;
  for (const Matrix& m : {params, grads, buffer, linear, anchor}) {
    wide = wide && (!m.data || packs_of_four(m, 4));
  }
  (wide ? launch<4> : launch<1>)(a, rows, clip, zero_grads, partial, scales, stream);
  return launch_error();
}

}  // namespace c2v
