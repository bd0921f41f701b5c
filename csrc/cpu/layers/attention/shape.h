// The sizes of an attention, and the functions that passes.h has for each kind of vector.
#pragma once

#include <cstdint>

namespace c2v {

struct AttentionShape {
  int64_t tokens, heads, width;  // width: of a head
  int64_t out() const { return heads * width; }  // of the result, a token
  int64_t row() const { return 3 * out(); }      // of qkv, a token
};

// Of one sample: qkv and grad are [tokens, row], y and dy [tokens, out].
#define ATTENTION_FUNCTIONS                                                                      \
  int64_t attention_space(const AttentionShape&); /* in floats */                                \
  void attention_forward(const AttentionShape&, const float* qkv, float* y, float* space);       \
  void attention_backward(const AttentionShape&, const float* qkv, const float* dy, float* grad, \
                          float* space);

namespace avx2 {
ATTENTION_FUNCTIONS
}
namespace avx512 {
ATTENTION_FUNCTIONS
}

}  // namespace c2v
