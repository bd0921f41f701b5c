// What convolution.cpp does, for itself and for pooled_convolution.cpp. All images are channels_last.
#pragma once

#include "../ops.h"

#include <optional>
#include <tuple>

namespace c2v {

using Gradients = std::tuple<Tensor, Tensor, Tensor>;  // of x, w and bias; empty where not needed

// `which`: null, or a byte for each output of ReLU and the pool of 2×2 that follow (layers/pool/windows.h); y and dy
// are then those of the pool.
void convolve(const Tensor& x, const Tensor& w, const float* bias, int64_t padding, int64_t stride,
              float* y, uint8_t* which);
Gradients convolve_backward(const float* dy, const uint8_t* which, const Tensor& x, const Tensor& w,
                            int64_t padding, int64_t stride, bool need_x, bool need_w, bool need_b);

}  // namespace c2v
