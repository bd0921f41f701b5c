// One layer's packed weights, and the functions that passes.h has for each kind of vector.
#pragma once

#include <cstdint>

namespace c2v {

constexpr int64_t kFfnTokens = 48;  // of a block; divides by the rows of the register tile

// Weights in the orders that the register tiles read; what lies beyond units or channels is zero.
struct FfnLayer {
  int64_t units, channels;
  int64_t tile;    // units side by side in tiles, two vectors
  int64_t stride;  // channels rounded up to two vectors of either kind
  const float *w1_tiles, *w2_tiles;  // [units / tile, channels, tile]
  const float *w1_rows, *w2_rows;    // [units, stride]
  const float* b1;                   // [units], in whole tiles
};

struct FfnDropout {
  int32_t threshold;  // of 65536: a unit is dropped when its 16 bits are below
  float scale;
  uint64_t seed;
};

// Gradients of the weights by one chunk of tokens: [units, stride] twice (null if not needed),
// [units in whole tiles], [stride]. They are added to.
struct FfnPartial {
  float *w1, *w2, *b1, *b2;
};

// Forward takes at most a block of kFfnTokens at once, backward any number; `first` is the first token
// among all. grad_x may be null.
#define FFN_FUNCTIONS                                                                             \
  int64_t ffn_tile();                                                                             \
  int64_t ffn_forward_space(const FfnLayer&); /* in floats, as the next */                        \
  int64_t ffn_backward_space(const FfnLayer&, int64_t count);                                     \
  void ffn_forward(const FfnLayer&, const FfnDropout&, const float* x, const float* b2,           \
                   int64_t first, int64_t count, float* space, float* y);                         \
  void ffn_backward(const FfnLayer&, const FfnDropout&, const float* x, const float* grad_y,      \
                    int64_t first, int64_t count, float* space, float* grad_x, const FfnPartial&);

namespace avx2 {
FFN_FUNCTIONS
}
namespace avx512 {
FFN_FUNCTIONS
}

}  // namespace c2v
