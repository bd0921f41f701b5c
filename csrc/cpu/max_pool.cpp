// max_pool, max_pool_backward: the largest of every 2×2 pixels, and ReLU of it, channels_last. Each
// output remembers in a byte which of the four pixels it is of (4: ReLU made it zero), so that the
// gradient writes every pixel once, where torch fills with zeros and then scatters.
#include "../ops.h"

#include <tuple>

namespace c2v {
namespace {

constexpr int kVec = 8;
#include "vec.h"
#include "pool.h"

struct Pooled {  // sizes of the images before and after
  int64_t images, height, width, channels;
  int64_t high() const { return height / 2; }
  int64_t wide() const { return width / 2; }
};

float* floats(const Tensor& t) { return static_cast<float*>(t.data_ptr()); }

}  // namespace

// x is contiguous [N, H, W, C]; y and which are [N, H / 2, W / 2, C].
std::tuple<Tensor, Tensor> max_pool_cpu(Tensor x, bool relu) {
  const Pooled s{x.size(0), x.size(1), x.size(2), x.size(3)};
  Tensor y = torch::stable::new_empty(x, {s.images, s.high(), s.wide(), s.channels});
  Tensor which = torch::stable::new_empty(x, {s.images, s.high(), s.wide(), s.channels},
                                          ScalarType::Byte);
  uint8_t* bytes = static_cast<uint8_t*>(which.data_ptr());
  const int64_t row = s.width * s.channels, pooled = s.wide() * s.channels;
  for (int64_t i = 0; i < s.images * s.high(); ++i) {
    const float* rows = floats(x) + (i / s.high() * s.height + i % s.high() * 2) * row;
    pool_rows(rows, row, nullptr, s.width, s.channels, relu, floats(y) + i * pooled,
              bytes + i * pooled);
  }
  return {y, which};
}

Tensor max_pool_backward_cpu(Tensor dy, Tensor which, int64_t height, int64_t width) {
  const Pooled s{dy.size(0), height, width, dy.size(3)};
  Tensor dx = torch::stable::new_empty(dy, {s.images, height, width, s.channels});
  const uint8_t* bytes = static_cast<const uint8_t*>(which.data_ptr());
  const int64_t row = width * s.channels, pooled = s.wide() * s.channels;
  for (int64_t image = 0; image < s.images; ++image) {
    float* top = floats(dx) + image * height * row;
    for (int64_t i = 0; i < s.high(); ++i) {
      float* rows = top + 2 * i * row;
      const int64_t at = (image * s.high() + i) * pooled;
      spread_rows(floats(dy) + at, bytes + at, width, s.channels, rows, row, s.channels);
      if (width % 2) {  // the last column is in no square
        for (int64_t r = 1; r <= 2; ++r) {
          std::memset(rows + r * row - s.channels, 0, s.channels * sizeof(float));
        }
      }
    }
    if (height % 2) std::memset(top + (height - 1) * row, 0, row * sizeof(float));
  }
  return dx;
}

}  // namespace c2v

STABLE_TORCH_LIBRARY_IMPL(c2v_sim, CPU, m) {
  m.impl("max_pool", TORCH_BOX(&c2v::max_pool_cpu));
  m.impl("max_pool_backward", TORCH_BOX(&c2v::max_pool_backward_cpu));
}
