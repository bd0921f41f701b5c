// The sizes of a convolution of any stride, and the functions that passes.h has for each kind of
// vector.
#pragma once

#include <cstdint>

namespace c2v {

struct DirectShape {
  int64_t images, height, width, channels, filters, taps, padding, stride;
  int64_t out_height() const { return (height + 2 * padding - taps) / stride + 1; }
  int64_t out_width() const { return (width + 2 * padding - taps) / stride + 1; }
};

// `which`: null, or a byte for each output of ReLU and the pool of 2×2 that follow (../pool.h); y and
// dy are then those of the pool.
#define DIRECT_FUNCTIONS                                                                          \
  int64_t direct_workspace(const DirectShape&, bool pooled); /* in floats */                      \
  void direct_forward(const DirectShape&, const float* x, const float* w, const float* bias,      \
                      float* y, uint8_t* which, float* space);                                    \
  void direct_backward(const DirectShape&, const float* dy, const uint8_t* which, const float* x, \
                       const float* w, float* dx, float* dw, float* db, float* space);

namespace avx2 {
DIRECT_FUNCTIONS
}
namespace avx512 {
DIRECT_FUNCTIONS
}

}  // namespace c2v
