// max_pool, max_pool_backward: the largest of every 2×2 pixels, and ReLU of it, channels_last. Each
// output remembers in a byte which of the four pixels it is of (4: ReLU made it zero), so that the
// gradient writes every pixel once, where torch fills with zeros and then scatters.
#include "../ops.h"

#include <tuple>
#include <type_traits>

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

// f(channel, count) for all channels in eights; where there are eight, the compiler knows it.
template <class F>
inline void by_eights(int64_t channels, const F& f) {
  int64_t c = 0;
  for (; c + 8 <= channels; c += 8) f(c, std::integral_constant<int64_t, 8>{});
  if (c < channels) f(c, channels - c);
}

inline void pool_pixel(const float* const (&from)[4], int64_t channels, bool relu, float* y,
                       uint8_t* which) {
  by_eights(channels, [&](int64_t c, auto count) {
    Vec pixels[4] = {}, most;
    Lanes where;
    for (int i = 0; i < 4; ++i) std::memcpy(&pixels[i], from[i] + c, count * sizeof(float));
    largest(pixels, relu, most, where);
    std::memcpy(y + c, &most, count * sizeof(float));
    store_bytes(which + c, where, count);
  });
}

inline void spread_pixel(const float* dy, const uint8_t* which, int64_t channels,
                         float* const (&to)[4]) {
  by_eights(channels, [&](int64_t c, auto count) {
    Vec grad = {};
    std::memcpy(&grad, dy + c, count * sizeof(float));
    const Lanes where = load_bytes(which + c, count);
    for (int i = 0; i < 4; ++i) {
      const Vec here = part_of(grad, where, i);
      std::memcpy(to[i] + c, &here, count * sizeof(float));
    }
  });
}

float* floats(const Tensor& t) { return static_cast<float*>(t.data_ptr()); }

}  // namespace

// x is contiguous [N, H, W, C]; y and which are [N, H / 2, W / 2, C].
std::tuple<Tensor, Tensor> max_pool_cpu(Tensor x, bool relu) {
  const Pooled s{x.size(0), x.size(1), x.size(2), x.size(3)};
  Tensor y = torch::stable::new_empty(x, {s.images, s.high(), s.wide(), s.channels});
  Tensor which = torch::stable::new_empty(x, {s.images, s.high(), s.wide(), s.channels},
                                          ScalarType::Byte);
  const float* images = floats(x);
  float* out = floats(y);
  uint8_t* bytes = static_cast<uint8_t*>(which.data_ptr());
  const int64_t row = s.width * s.channels;
  for (int64_t pixel = 0; pixel < s.images * s.high() * s.wide(); ++pixel) {
    const int64_t j = pixel % s.wide(), i = pixel / s.wide() % s.high();
    const int64_t image = pixel / (s.wide() * s.high());
    const float* at = images + ((image * s.height + 2 * i) * s.width + 2 * j) * s.channels;
    const float* const from[4] = {at, at + s.channels, at + row, at + row + s.channels};
    pool_pixel(from, s.channels, relu, out + pixel * s.channels, bytes + pixel * s.channels);
  }
  return {y, which};
}

Tensor max_pool_backward_cpu(Tensor dy, Tensor which, int64_t height, int64_t width) {
  const Pooled s{dy.size(0), height, width, dy.size(3)};
  Tensor dx = torch::stable::new_empty(dy, {s.images, height, width, s.channels});
  const float* grads = floats(dy);
  float* images = floats(dx);
  const uint8_t* bytes = static_cast<const uint8_t*>(which.data_ptr());
  const int64_t row = width * s.channels;
  for (int64_t image = 0; image < s.images; ++image) {
    float* top = images + image * height * row;
    for (int64_t i = 0; i < s.high(); ++i) {
      for (int64_t j = 0; j < s.wide(); ++j) {
        const int64_t pixel = ((image * s.high() + i) * s.wide() + j) * s.channels;
        float* at = top + 2 * i * row + 2 * j * s.channels;
        float* const to[4] = {at, at + s.channels, at + row, at + row + s.channels};
        spread_pixel(grads + pixel, bytes + pixel, s.channels, to);
      }
      if (width % 2) {  // the last column is in no square
        for (int64_t r = 0; r < 2; ++r) {
          std::memset(top + (2 * i + r + 1) * row - s.channels, 0, s.channels * sizeof(float));
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
