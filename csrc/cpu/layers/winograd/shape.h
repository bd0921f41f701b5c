// The sizes of a convolution of stride 1, and the functions that passes.h has for each kind of
// vector.
#pragma once

#include <cstdint>

namespace c2v {

struct WinogradShape {
  int64_t images, height, width, channels, filters, taps, padding;
  int64_t out, block;  // outputs of a tile in one dimension; tiles that are worked on at a time
  int64_t out_height() const { return height + 2 * padding - taps + 1; }
  int64_t out_width() const { return width + 2 * padding - taps + 1; }
};

// `which`: null, or a byte for each output of ReLU and the pool of 2×2 that follow (../pool.h); y and
// dy are then those of the pool.
#define WINOGRAD_FUNCTIONS                                                                        \
  int64_t workspace(const WinogradShape&, bool is_backward); /* in floats */                      \
  void run_forward(const WinogradShape&, const float* x, const float* w, const float* bias,       \
                   float* y, uint8_t* which, float* space);                                       \
  void run_backward(const WinogradShape&, const float* dy, const uint8_t* which, const float* x,  \
                    const float* w, float* dx, float* dw, float* db, float* space);

namespace avx2 {
WINOGRAD_FUNCTIONS
}
namespace avx512 {
WINOGRAD_FUNCTIONS
}

}  // namespace c2v
