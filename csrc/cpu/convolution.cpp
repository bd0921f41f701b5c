// convolution, convolution_backward: 1×1, 3×3 or 5×5, channels_last. The work is done by
// layers/winograd/passes.h or layers/direct/passes.h, for the vectors that this CPU has.
#include "convolution.h"

#include "layers/direct/shape.h"
#include "layers/winograd/shape.h"
#include "vectors/kinds.h"

namespace c2v {
namespace {

struct Kind {  // of vectors
  decltype(&avx2::workspace) workspace;
  decltype(&avx2::run_forward) forward;
  decltype(&avx2::run_backward) backward;
  decltype(&avx2::direct_workspace) direct_workspace;
  decltype(&avx2::direct_forward) direct_forward;
  decltype(&avx2::direct_backward) direct_backward;
};

const Kind& kind() {
  static const Kind chosen = [] {
#if defined(__x86_64__)
    if (has_wide_vectors()) {
      return Kind{avx512::workspace, avx512::run_forward, avx512::run_backward,
                  avx512::direct_workspace, avx512::direct_forward, avx512::direct_backward};
    }
#endif
    return Kind{avx2::workspace, avx2::run_forward, avx2::run_backward,
                avx2::direct_workspace, avx2::direct_forward, avx2::direct_backward};
  }();
  return chosen;
}

// Few channels do not pay for the transforms; neither do they go with another stride.
bool is_direct(const Tensor& x, const Tensor& w, int64_t stride) {
  return stride > 1 || w.size(2) == 1 || x.size(1) < 16 || w.size(0) < 16;
}

DirectShape direct_shape(const Tensor& x, const Tensor& w, int64_t padding, int64_t stride) {
  return {x.size(0), x.size(2), x.size(3), x.size(1), w.size(0), w.size(2), padding, stride};
}

int64_t tiles_of(const WinogradShape& s, int64_t out) {
  return s.images * ((s.out_height() + out - 1) / out) * ((s.out_width() + out - 1) / out);
}

// Larger tiles need fewer products, unless they hang over the edge or are too few for the many taps.
int64_t out_of(const WinogradShape& s) {
  if (s.taps == 5) return 2;
  const int64_t large = tiles_of(s, 4), small = tiles_of(s, 2);
  return 36 * large <= 12 * small && large >= 64 ? 4 : 2;
}

// How many tiles are worked on at a time: as many as a part of the second-level cache holds; where the
// transformed taps alone exceed it, so many that reading them is repaid (bench/convolutions.py).
int64_t block_of(const WinogradShape& s, bool backward) {
  constexpr int64_t kCache = 300 << 10, kFew = 24, kMany = 96;
  const int64_t points = (s.taps + s.out - 1) * (s.taps + s.out - 1);
  const int64_t taps = points * s.channels * s.filters * 4;
  if (taps > 6 * kCache) return backward ? 4 * kMany : 2 * kMany;
  const int64_t tile = points * (s.channels + s.filters + 32) * 4;
  return std::clamp(kCache / tile, kFew, kMany);
}

WinogradShape shape_of(const Tensor& x, const Tensor& w, int64_t padding, bool backward) {
  WinogradShape s{x.size(0), x.size(2), x.size(3), x.size(1), w.size(0), w.size(2), padding, 0, 0};
  s.out = out_of(s);
  s.block = block_of(s, backward);
  return s;
}

}  // namespace

void convolve(const Tensor& x, const Tensor& w, const float* bias, int64_t padding, int64_t stride,
              float* y, uint8_t* which) {
  if (is_direct(x, w, stride)) {
    const DirectShape s = direct_shape(x, w, padding, stride);
    float* space = work_space(kind().direct_workspace(s, which != nullptr));
    kind().direct_forward(s, floats_of(x), floats_of(w), bias, y, which, space);
  } else {
    const WinogradShape s = shape_of(x, w, padding, false);
    float* space = work_space(kind().workspace(s, false));
    kind().forward(s, floats_of(x), floats_of(w), bias, y, which, space);
  }
}

Gradients convolve_backward(const float* dy, const uint8_t* which, const Tensor& x, const Tensor& w,
                            int64_t padding, int64_t stride, bool need_x, bool need_w, bool need_b) {
  Tensor dx = new_images(need_x ? x.size(0) : 0, x.size(2), x.size(3), x.size(1));
  Tensor dw = new_images(need_w ? w.size(0) : 0, w.size(2), w.size(3), x.size(1));
  Tensor db = torch::stable::new_empty(x, {need_b ? w.size(0) : 0});
  float *to_x = need_x ? floats_of(dx) : nullptr, *to_w = need_w ? floats_of(dw) : nullptr;
  float* to_b = need_b ? floats_of(db) : nullptr;
  if (is_direct(x, w, stride)) {
    const DirectShape s = direct_shape(x, w, padding, stride);
    float* space = work_space(kind().direct_workspace(s, which != nullptr));
    kind().direct_backward(s, dy, which, floats_of(x), floats_of(w), to_x, to_w, to_b, space);
  } else {
    const WinogradShape s = shape_of(x, w, padding, true);
    float* space = work_space(kind().workspace(s, true));
    kind().backward(s, dy, which, floats_of(x), floats_of(w), to_x, to_w, to_b, space);
  }
  return {dx, dw, db};
}

Tensor convolution_cpu(Tensor x, Tensor w, std::optional<Tensor> bias, int64_t padding,
                       int64_t stride) {
  const DirectShape s = direct_shape(x, w, padding, stride);
  Tensor y = new_images(s.images, s.out_height(), s.out_width(), s.filters);
  convolve(x, w, bias ? floats_of(*bias) : nullptr, padding, stride, floats_of(y), nullptr);
  return y;
}

Gradients convolution_backward_cpu(Tensor dy, Tensor x, Tensor w, int64_t padding, int64_t stride,
                                   bool need_x, bool need_w, bool need_b) {
  return convolve_backward(floats_of(dy), nullptr, x, w, padding, stride, need_x, need_w, need_b);
}

}  // namespace c2v

STABLE_TORCH_LIBRARY_IMPL(c2v_sim, CPU, m) {
  m.impl("convolution", TORCH_BOX(&c2v::convolution_cpu));
  m.impl("convolution_backward", TORCH_BOX(&c2v::convolution_backward_cpu));
}
