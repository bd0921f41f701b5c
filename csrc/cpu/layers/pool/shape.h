// The sizes of a pool of 2×2 pixels, and the functions that passes.h has for each kind of vector.
#pragma once

#include <cstdint>

namespace c2v {

struct PoolShape {  // of the images before, [N, H, W, C]
  int64_t images, height, width, channels;
  int64_t high() const { return height / 2; }
  int64_t wide() const { return width / 2; }
};

#define POOL_FUNCTIONS                                                                          \
  void pool_forward(const PoolShape&, bool relu, const float* x, float* y, uint8_t* which);     \
  void pool_backward(const PoolShape&, const float* dy, const uint8_t* which, float* dx);

namespace avx2 {
POOL_FUNCTIONS
}
namespace avx512 {
POOL_FUNCTIONS
}

}  // namespace c2v
