// depthwise_convolution, depthwise_convolution_backward: 3×3 of each channel by itself, padding 1,
// stride 1 or 2, channels_last. The work is done by layers/depthwise/passes.h, for the vectors of this
// CPU.
#include "layers/depthwise/shape.h"
#include "vectors/kinds.h"

#include <tuple>

namespace c2v {
namespace {

struct Kind {  // of vectors
  decltype(&avx2::depthwise_forward) forward;
  decltype(&avx2::depthwise_backward) backward;
};

const Kind& kind() {
  static const Kind chosen = [] {
#if defined(__x86_64__)
    if (has_wide_vectors()) return Kind{avx512::depthwise_forward, avx512::depthwise_backward};
#endif
    return Kind{avx2::depthwise_forward, avx2::depthwise_backward};
  }();
  return chosen;
}

DepthwiseShape shape_of(const Tensor& x, int64_t stride) {
  return {x.size(0), x.size(2), x.size(3), x.size(1), stride};
}

}  // namespace

// The memory of x is [N, H, W, C], that of w [C, 3, 3].
Tensor depthwise_convolution_cpu(Tensor x, Tensor w, int64_t stride) {
  const DepthwiseShape s = shape_of(x, stride);
  Tensor y = new_images(s.images, s.out_height(), s.out_width(), s.channels);
  kind().forward(s, floats_of(x), floats_of(w), floats_of(y), work_space(18 * s.channels));
  return y;
}

std::tuple<Tensor, Tensor> depthwise_convolution_backward_cpu(Tensor dy, Tensor x, Tensor w,
                                                              int64_t stride, bool need_x,
                                                              bool need_w) {
  const DepthwiseShape s = shape_of(x, stride);
  Tensor dx = new_images(need_x ? s.images : 0, s.height, s.width, s.channels);
  Tensor dw = torch::stable::new_empty(x, {need_w ? s.channels : 0, 1, 3, 3});
  kind().backward(s, floats_of(dy), floats_of(x), floats_of(w), need_x ? floats_of(dx) : nullptr,
                  need_w ? floats_of(dw) : nullptr, work_space(18 * s.channels));
  return {dx, dw};
}

}  // namespace c2v

STABLE_TORCH_LIBRARY_IMPL(c2v_sim, CPU, m) {
  m.impl("depthwise_convolution", TORCH_BOX(&c2v::depthwise_convolution_cpu));
  m.impl("depthwise_convolution_backward", TORCH_BOX(&c2v::depthwise_convolution_backward_cpu));
}
