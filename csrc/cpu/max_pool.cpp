// max_pool, max_pool_backward: the largest of every 2×2 pixels, and ReLU of it, channels_last. Each
// output remembers in a byte which of the four pixels it is of (4: ReLU made it zero), so that the
// gradient writes every pixel once, where torch fills with zeros and then scatters. The work is done
// by layers/pool/passes.h, for the vectors of this CPU.
#include "layers/pool/shape.h"
#include "vectors/kinds.h"

#include <tuple>

namespace c2v {
namespace {

struct Kind {  // of vectors
  decltype(&avx2::pool_forward) forward;
  decltype(&avx2::pool_backward) backward;
};

// A part of a vector of 16 is slower than a vector of 8.
Kind kind_for(int64_t channels) {
#if defined(__x86_64__)
  static const bool wide = has_wide_vectors();
  if (wide && channels % 16 == 0) return {avx512::pool_forward, avx512::pool_backward};
#endif
  return {avx2::pool_forward, avx2::pool_backward};
}

}  // namespace

// x is contiguous [N, H, W, C]; y and which are [N, H / 2, W / 2, C].
std::tuple<Tensor, Tensor> max_pool_cpu(Tensor x, bool relu) {
  const PoolShape s{x.size(0), x.size(1), x.size(2), x.size(3)};
  Tensor y = torch::stable::new_empty(x, {s.images, s.high(), s.wide(), s.channels});
  Tensor which = torch::stable::new_empty(x, {s.images, s.high(), s.wide(), s.channels},
                                          ScalarType::Byte);
  kind_for(s.channels).forward(s, relu, floats_of(x), floats_of(y), bytes_of(which));
  return {y, which};
}

Tensor max_pool_backward_cpu(Tensor dy, Tensor which, int64_t height, int64_t width) {
  const PoolShape s{dy.size(0), height, width, dy.size(3)};
  Tensor dx = torch::stable::new_empty(dy, {s.images, height, width, s.channels});
  kind_for(s.channels).backward(s, floats_of(dy), bytes_of(which), floats_of(dx));
  return dx;
}

}  // namespace c2v

STABLE_TORCH_LIBRARY_IMPL(c2v_sim, CPU, m) {
  m.impl("max_pool", TORCH_BOX(&c2v::max_pool_cpu));
  m.impl("max_pool_backward", TORCH_BOX(&c2v::max_pool_backward_cpu));
}
