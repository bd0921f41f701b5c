// The largest of every 2×2 pixels, and the gradient of that.
//
// Compiled once for each kind of vector (avx2.cpp, avx512.cpp). Nothing of the standard library with
// a body is used: the linker could take its AVX-512 code for all.
#include "shape.h"

#include <cstring>

namespace c2v {
namespace VECTORS {
namespace {

constexpr int kVec = FLOATS_OF_A_VECTOR;
using Vec = float __attribute__((vector_size(4 * kVec)));
using Ints = int32_t __attribute__((vector_size(4 * kVec)));
using Bytes = uint8_t __attribute__((vector_size(kVec)));

inline Bytes lowest_bytes(Ints v) {
#if FLOATS_OF_A_VECTOR == 8  // in two shuffles: GCC 12 would take the numbers one by one
  using All = uint8_t __attribute__((vector_size(32)));
  const All all = reinterpret_cast<All>(v);
  return __builtin_shufflevector(all, all, 0, 4, 8, 12, 16, 20, 24, 28);
#else
  return __builtin_convertvector(v, Bytes);
#endif
}

inline Vec choose(Ints mask, Vec a, Vec b) { return mask ? a : b; }

// The largest of four, as torch has it: the first of equal ones, and NaN above all.
inline void largest(const Vec (&pixels)[4], bool relu, Vec& most, Ints& which) {
  most = pixels[0];
  which = Ints{};
  for (int i = 1; i < 4; ++i) {
    const Ints more = (pixels[i] > most) | (pixels[i] != pixels[i]);
    most = choose(more, pixels[i], most);
    which = more ? Ints{} + i : which;
  }
  if (relu) {
    const Ints dead = most <= 0.0f;
    most = choose(dead, Vec{}, most);
    which = dead ? Ints{} + 4 : which;
  }
}

// f(channel, count) for all channels in vectors; the compiler knows the count of a whole one.
struct Whole {
  constexpr operator int64_t() const { return kVec; }
};
template <class F>
inline void by_vectors(int64_t channels, const F& f) {
  int64_t c = 0;
  for (; c + kVec <= channels; c += kVec) f(c, Whole{});
  if (c < channels) f(c, channels - c);
}

inline void pool_pixel(const float* const (&from)[4], int64_t channels, bool relu, float* y,
                       uint8_t* which) {
  by_vectors(channels, [&](int64_t c, auto count) {
    Vec pixels[4] = {}, most;
    Ints where;
    for (int i = 0; i < 4; ++i) std::memcpy(&pixels[i], from[i] + c, count * sizeof(float));
    largest(pixels, relu, most, where);
    const Bytes bytes = lowest_bytes(where);
    std::memcpy(y + c, &most, count * sizeof(float));
    std::memcpy(which + c, &bytes, count);
  });
}

inline void spread_pixel(const float* dy, const uint8_t* which, int64_t channels,
                         float* const (&to)[4]) {
  by_vectors(channels, [&](int64_t c, auto count) {
    Vec grad = {};
    Bytes bytes = {};
    std::memcpy(&grad, dy + c, count * sizeof(float));
    std::memcpy(&bytes, which + c, count);
    const Ints where = __builtin_convertvector(bytes, Ints);
    for (int i = 0; i < 4; ++i) {
      const Vec here = choose(where == Ints{} + i, grad, Vec{});
      std::memcpy(to[i] + c, &here, count * sizeof(float));
    }
  });
}

}  // namespace

void pool_forward(const PoolShape& s, bool relu, const float* x, float* y, uint8_t* which) {
  const int64_t row = s.width * s.channels;
  for (int64_t pixel = 0; pixel < s.images * s.high() * s.wide(); ++pixel) {
    const int64_t j = pixel % s.wide(), i = pixel / s.wide() % s.high();
    const int64_t image = pixel / (s.wide() * s.high());
    const float* at = x + ((image * s.height + 2 * i) * s.width + 2 * j) * s.channels;
    const float* const from[4] = {at, at + s.channels, at + row, at + row + s.channels};
    pool_pixel(from, s.channels, relu, y + pixel * s.channels, which + pixel * s.channels);
  }
}

void pool_backward(const PoolShape& s, const float* dy, const uint8_t* which, float* dx) {
  const int64_t row = s.width * s.channels;
  for (int64_t image = 0; image < s.images; ++image) {
    float* top = dx + image * s.height * row;
    for (int64_t i = 0; i < s.high(); ++i) {
      for (int64_t j = 0; j < s.wide(); ++j) {
        const int64_t pixel = ((image * s.high() + i) * s.wide() + j) * s.channels;
        float* at = top + 2 * i * row + 2 * j * s.channels;
        float* const to[4] = {at, at + s.channels, at + row, at + row + s.channels};
        spread_pixel(dy + pixel, which + pixel, s.channels, to);
      }
      if (s.width % 2) {  // the last column is in no square
        for (int64_t r = 0; r < 2; ++r) {
          std::memset(top + (2 * i + r + 1) * row - s.channels, 0, s.channels * sizeof(float));
        }
      }
    }
    if (s.height % 2) std::memset(top + (s.height - 1) * row, 0, row * sizeof(float));
  }
}

}  // namespace VECTORS
}  // namespace c2v
