// sgd_step: torch.optim.SGD over the rows of an arena in one pass, after an optional clip of each
// row's gradient norm (one more read). Formula: c2v_sim/ops/sgd_step.py.
//
// Rows are cut into fixed blocks. An element is updated by one thread; the squared norm of a
// block is summed in float64 by one thread and blocks are added in order: the bits are those of
// any thread count. Products are fused with additions exactly where torch fuses them, so that
// a step without clipping has the bits of torch.optim.SGD.
#include "../ops.h"

#include <cmath>
#include <optional>
#include <vector>

// Only the explicit fma below: GCC would otherwise contract momentum * b + d as well.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("fp-contract=off")
#endif

namespace c2v {
namespace {

constexpr int64_t kBlock = 4096;   // elements; 16 KiB of each stream
constexpr int64_t kGrain = 4;      // blocks that repay waking a thread
constexpr int kLanes = 16;         // independent partial sums of a norm
constexpr float kClipEpsilon = 1e-6f;

struct Options {  // a row of the [K, 5] options tensor
  float lr, weight_decay, momentum, proximal, max_norm;
};

struct Block {  // a piece of one row
  float* __restrict params;
  float* __restrict grads;
  float* __restrict buffer;
  const float* __restrict linear;
  const float* __restrict anchor;
  int64_t size;
};

template <bool kLinear, bool kAnchor>
inline float objective_gradient(const Block& b, int64_t i, float proximal) {
  float d = b.grads[i];
  if constexpr (kLinear) d = d + b.linear[i];
  if constexpr (kAnchor) d = d + proximal * (b.params[i] - b.anchor[i]);
  return d;
}

template <bool kLinear, bool kAnchor>
double squared_norm(const Block& b, float proximal) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= b.size; i += kLanes) {
#pragma omp simd
    for (int j = 0; j < kLanes; ++j) {
      const double d = objective_gradient<kLinear, kAnchor>(b, i + j, proximal);
      lanes[j] = lanes[j] + d * d;
    }
  }
  for (int j = 0; i < b.size; ++i, ++j) {
    const double d = objective_gradient<kLinear, kAnchor>(b, i, proximal);
    lanes[j] += d * d;
  }
  double sum = 0;
  for (double lane : lanes) sum += lane;
  return sum;
}

template <bool kLinear, bool kAnchor, bool kBuffer, bool kZero>
void update(const Block& b, const Options& o, float scale) {
#pragma omp simd
  for (int64_t i = 0; i < b.size; ++i) {
    float d = objective_gradient<kLinear, kAnchor>(b, i, o.proximal) * scale;
    d = __builtin_fmaf(o.weight_decay, b.params[i], d);
    if constexpr (kBuffer) {
      d = o.momentum * b.buffer[i] + d;
      b.buffer[i] = d;
    }
    b.params[i] = __builtin_fmaf(-o.lr, d, b.params[i]);
    if constexpr (kZero) b.grads[i] = 0.0f;
  }
}

// Calls f(std::bool_constant…) with the run-time flags as types.
template <class F>
void with_flags(const F& f) { f(); }
template <class F, class... Rest>
void with_flags(const F& f, bool first, Rest... rest) {
  if (first) {
    with_flags([&](auto... more) { f(std::true_type{}, more...); }, rest...);
  } else {
    with_flags([&](auto... more) { f(std::false_type{}, more...); }, rest...);
  }
}

struct Rows {  // base pointer and row stride; null when the tensor is absent
  float* data = nullptr;
  int64_t stride = 0;
  explicit Rows(const Tensor& t) : data(static_cast<float*>(t.data_ptr())), stride(t.stride(0)) {}
  explicit Rows(const std::optional<Tensor>& t) {
    if (t) *this = Rows(*t);
  }
  float* at(int64_t row, int64_t column) const {
    return data ? data + row * stride + column : nullptr;
  }
};

float clip_scale(double squared_norm, float max_norm) {
  const float scale = max_norm / (static_cast<float>(std::sqrt(squared_norm)) + kClipEpsilon);
  return scale > 1.0f ? 1.0f : scale;  // NaN stays NaN
}

}  // namespace

void sgd_step_cpu(Tensor params, Tensor grads, std::optional<Tensor> momentum_buffer,
                  Tensor options, std::optional<Tensor> linear, std::optional<Tensor> anchor,
                  bool clip, bool zero_grads) {
  STD_TORCH_CHECK(params.scalar_type() == ScalarType::Float, "sgd_step: params must be float32");
  const int64_t rows = params.size(0), size = params.size(1);
  if (rows == 0 || size == 0) return;
  const Rows p(params), g(grads), b(momentum_buffer), l(linear), a(anchor), o(options);
  const int64_t blocks = (size + kBlock - 1) / kBlock;
  const auto block_at = [&](int64_t task) {
    const int64_t row = task / blocks, first = task % blocks * kBlock;
    return Block{p.at(row, first), g.at(row, first), b.at(row, first), l.at(row, first),
                 a.at(row, first), std::min(kBlock, size - first)};
  };
  const auto options_at = [&](int64_t task) {
    const float* v = o.at(task / blocks, 0);
    return Options{v[0], v[1], v[2], v[3], v[4]};
  };

  std::vector<float> scales(rows, 1.0f);
  if (clip) {
    std::vector<double> partial(rows * blocks);
    with_flags(
        [&](auto has_linear, auto has_anchor) {
          torch::stable::parallel_for(0, rows * blocks, kGrain, [&](int64_t begin, int64_t end) {
            for (int64_t task = begin; task < end; ++task) {
              partial[task] = squared_norm<has_linear, has_anchor>(block_at(task),
                                                                   options_at(task).proximal);
            }
          });
        },
        linear.has_value(), anchor.has_value());
    for (int64_t row = 0; row < rows; ++row) {
      double sum = 0;
      for (int64_t i = 0; i < blocks; ++i) sum += partial[row * blocks + i];
      scales[row] = clip_scale(sum, options_at(row * blocks).max_norm);
    }
  }
  with_flags(
      [&](auto has_linear, auto has_anchor, auto has_buffer, auto zero) {
        torch::stable::parallel_for(0, rows * blocks, kGrain, [&](int64_t begin, int64_t end) {
          for (int64_t task = begin; task < end; ++task) {
            update<has_linear, has_anchor, has_buffer, zero>(block_at(task), options_at(task),
                                                             scales[task / blocks]);
          }
        });
      },
      linear.has_value(), anchor.has_value(), momentum_buffer.has_value(), zero_grads);
}

}  // namespace c2v

STABLE_TORCH_LIBRARY_IMPL(c2v_sim, CPU, m) { m.impl("sgd_step", TORCH_BOX(&c2v::sgd_step_cpu)); }
