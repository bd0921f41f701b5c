// convolution, convolution_backward: stride 1, 3×3 or 5×5, channels_last. The work is done by
// winograd/passes.h, for the vectors that this CPU has.
#include "kinds_of_vectors.h"
#include "winograd/shape.h"

#include <optional>

namespace c2v {
namespace {

struct Kind {  // of vectors
  decltype(&avx2::workspace) workspace;
  decltype(&avx2::run_forward) forward;
  decltype(&avx2::run_backward) backward;
};

const Kind& kind() {
  static const Kind chosen = [] {
#if defined(__x86_64__)
    if (has_wide_vectors()) {
      return Kind{avx512::workspace, avx512::run_forward, avx512::run_backward};
    }
#endif
    return Kind{avx2::workspace, avx2::run_forward, avx2::run_backward};
  }();
  return chosen;
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

// How many tiles are worked on at a time: as many as the second-level cache holds, and where the
// transformed taps alone exceed it, so many that reading them is repaid (bench/convolutions.py).
int64_t block_of(const WinogradShape& s, bool backward) {
  constexpr int64_t kCache = 600 << 10, kFew = 24, kMany = 96;
  const int64_t points = (s.taps + s.out - 1) * (s.taps + s.out - 1);
  const int64_t taps = points * s.channels * s.filters * 4;
  if (taps > 3 * kCache) return backward ? 4 * kMany : 2 * kMany;
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

Tensor convolution_cpu(Tensor x, Tensor w, std::optional<Tensor> bias, int64_t padding) {
  const WinogradShape s = shape_of(x, w, padding, false);
  Tensor y = images_like(x, s.images, s.out_height(), s.out_width(), s.filters);
  float* space = work_space(kind().workspace(s, false));
  kind().forward(s, floats_of(x), floats_of(w), bias ? floats_of(*bias) : nullptr, floats_of(y), space);
  return y;
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward_cpu(Tensor dy, Tensor x, Tensor w,
                                                            int64_t padding, bool need_x,
                                                            bool need_w, bool need_b) {
  const WinogradShape s = shape_of(x, w, padding, true);
  Tensor dx = images_like(x, need_x ? s.images : 0, s.height, s.width, s.channels);
  Tensor dw = images_like(x, need_w ? s.filters : 0, s.taps, s.taps, s.channels);
  Tensor db = torch::stable::new_empty(x, {need_b ? s.filters : 0});
  float* space = work_space(kind().workspace(s, true));
  kind().backward(s, floats_of(dy), floats_of(x), floats_of(w), need_x ? floats_of(dx) : nullptr,
                  need_w ? floats_of(dw) : nullptr, need_b ? floats_of(db) : nullptr, space);
  return {dx, dw, db};
}

}  // namespace c2v

STABLE_TORCH_LIBRARY_IMPL(c2v_sim, CPU, m) {
  m.impl("convolution", TORCH_BOX(&c2v::convolution_cpu));
  m.impl("convolution_backward", TORCH_BOX(&c2v::convolution_backward_cpu));
}
