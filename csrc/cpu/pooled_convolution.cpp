// pooled_convolution, pooled_convolution_backward: a convolution of stride 1, its bias, ReLU and the
// pool of 2×2 in one pass each way. The convolution's outputs and their gradients are never in memory.
#include "convolution.h"
#include "vectors/kinds.h"

namespace c2v {

std::tuple<Tensor, Tensor> pooled_convolution_cpu(Tensor x, Tensor w, std::optional<Tensor> bias,
                                                  int64_t padding) {
  const int64_t beside = 2 * padding - w.size(2) + 1;
  const int64_t high = (x.size(2) + beside) / 2, wide = (x.size(3) + beside) / 2;
  Tensor y = new_images(x.size(0), high, wide, w.size(0));
  Tensor which =
      torch::stable::new_empty(x, {x.size(0), high, wide, w.size(0)}, ScalarType::Byte);
  convolve(x, w, bias ? floats_of(*bias) : nullptr, padding, 1, floats_of(y), bytes_of(which));
  return {y, which};
}

Gradients pooled_convolution_backward_cpu(Tensor dy, Tensor which, Tensor x, Tensor w,
                                          int64_t padding, bool need_x, bool need_w, bool need_b) {
  return convolve_backward(floats_of(dy), bytes_of(which), x, w, padding, 1, need_x, need_w, need_b);
}

}  // namespace c2v

STABLE_TORCH_LIBRARY_IMPL(c2v_sim, CPU, m) {
  m.impl("pooled_convolution", TORCH_BOX(&c2v::pooled_convolution_cpu));
  m.impl("pooled_convolution_backward", TORCH_BOX(&c2v::pooled_convolution_backward_cpu));
}
