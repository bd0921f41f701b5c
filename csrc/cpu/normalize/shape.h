// The sizes of a group or batch norm, and the functions that passes.h has for each kind of vector.
#pragma once

#include <cstdint>

namespace c2v {

struct NormShape {  // images are [images, pixels, channels]
  int64_t images, pixels, channels;
  int64_t groups;  // of channels, whose statistics are of one image; 0: a batch norm
  float eps, most;  // 0: the result is not cut; else it is cut at 0 and here
  int64_t statistics() const { return groups ? images * groups : channels; }
  int64_t in_group() const { return groups ? channels / groups : 1; }
  // What norms have in common: rows of pixels that statistics are made of, a part after the other.
  int64_t parts() const { return groups ? images : 1; }
  int64_t rows() const { return groups ? pixels : images * pixels; }
  // Rows that are worked on at a time: they stay in the second-level cache.
  int64_t chunk() const {
    const int64_t count = (32 << 10) / channels;
    return count > 1 ? count : 1;
  }
  int64_t floats() const { return 16 * channels; }  // of working space
};

// x, y, dy, dx and shortcuts are [images, pixels, channels]; mean and var [statistics],
// in double, so that the rounding of a mean costs nothing; others
// [channels]. `known`: mean and var are read, else written. A shortcut may be null, so may y and
// cut_dy (dy where the result was not cut) where nothing is cut.
#define NORM_FUNCTIONS                                                                         \
  void norm_forward(const NormShape&, const float* x, const float* w, const float* b,          \
                    const float* shortcut, bool known, double* mean, double* var, float* y,    \
                    float* space);                                                             \
  void norm_backward(const NormShape&, const float* dy, const float* x, const float* y,        \
                     const float* w, const double* mean, const double* var, float* dx, float* dw, \
                     float* db, float* cut_dy, float* space);

namespace avx2 {
NORM_FUNCTIONS
}
namespace avx512 {
NORM_FUNCTIONS
}

}  // namespace c2v
