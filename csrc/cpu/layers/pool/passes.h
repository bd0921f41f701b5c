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
#include "../../vectors/vec.h"
#include "windows.h"

}  // namespace

void pool_forward(const PoolShape& s, bool relu, const float* x, float* y, uint8_t* which) {
  const int64_t row = s.width * s.channels, pooled = s.wide() * s.channels;
  for (int64_t i = 0; i < s.images * s.high(); ++i, y += pooled, which += pooled) {
    const float* rows = x + (i / s.high() * s.height + i % s.high() * 2) * row;
    pool_rows(rows, row, nullptr, s.width, s.channels, relu, y, which);
  }
}

void pool_backward(const PoolShape& s, const float* dy, const uint8_t* which, float* dx) {
  const int64_t row = s.width * s.channels, pooled = s.wide() * s.channels;
  for (int64_t image = 0; image < s.images; ++image) {
    float* top = dx + image * s.height * row;
    for (int64_t i = 0; i < s.high(); ++i, dy += pooled, which += pooled) {
      float* rows = top + 2 * i * row;
      spread_rows(dy, which, s.width, s.channels, rows, row, s.channels);
      if (s.width % 2) {  // the last column is in no square
        for (int64_t r = 1; r <= 2; ++r) {
          std::memset(rows + r * row - s.channels, 0, s.channels * sizeof(float));
        }
      }
    }
    if (s.height % 2) std::memset(top + (s.height - 1) * row, 0, row * sizeof(float));
  }
}

}  // namespace VECTORS
}  // namespace c2v
