// The sizes of a 3×3 convolution of each channel by itself, and the functions that passes.h has for
// each kind of vector.
#pragma once

#include <cstdint>

namespace c2v {

struct DepthwiseShape {  // zeros of one pixel around the images
  int64_t images, height, width, channels, stride;
  int64_t out_height() const { return (height - 1) / stride + 1; }
  int64_t out_width() const { return (width - 1) / stride + 1; }
  // Rows of the output that are worked on at a time: their inputs stay in the second-level cache.
  int64_t band() const {
    const int64_t rows = (256 << 10) / (4 * stride * width * channels + 1);
    return rows > 1 ? rows : 1;
  }
};

// w and dw are [channels, 9]; space has 18 floats for each channel.
#define DEPTHWISE_FUNCTIONS                                                                   \
  void depthwise_forward(const DepthwiseShape&, const float* x, const float* w, float* y,     \
                         float* space);                                                       \
  void depthwise_backward(const DepthwiseShape&, const float* dy, const float* x, const float* w, \
                          float* dx, float* dw, float* space);

namespace avx2 {
DEPTHWISE_FUNCTIONS
}
namespace avx512 {
DEPTHWISE_FUNCTIONS
}

}  // namespace c2v
