// short_attention, short_attention_backward: softmax(q kᵀ / √w) v for few tokens and narrow heads,
// where a product of matrices is a handful of numbers wide. One task per sample. The work is done by
// layers/attention/passes.h, for the vectors of this CPU.
#include "layers/attention/shape.h"
#include "vectors/kinds.h"

namespace c2v {
namespace {

struct Kind {  // of vectors
  decltype(&avx2::attention_space) space;
  decltype(&avx2::attention_forward) forward;
  decltype(&avx2::attention_backward) backward;
};

const Kind& kind() {
  static const Kind chosen = [] {
#if defined(__x86_64__)
    if (has_wide_vectors()) {
      return Kind{avx512::attention_space, avx512::attention_forward, avx512::attention_backward};
    }
#endif
    return Kind{avx2::attention_space, avx2::attention_forward, avx2::attention_backward};
  }();
  return chosen;
}

AttentionShape shape_of(const Tensor& qkv, int64_t heads) {
  return {qkv.size(1), heads, qkv.size(2) / (3 * heads)};
}

// f(sample, work space) for all samples.
template <class F>
void each_sample(int64_t samples, const AttentionShape& s, const F& f) {
  torch::stable::parallel_for(0, samples, 1, [&](int64_t begin, int64_t end) {
    float* space = work_space(kind().space(s));
    for (int64_t i = begin; i < end; ++i) f(i, space);
  });
}

}  // namespace

// qkv is contiguous [B, T, 3 · H · w]; the result [B, T, H · w].
Tensor short_attention_cpu(Tensor qkv, int64_t heads) {
  const AttentionShape s = shape_of(qkv, heads);
  Tensor y = torch::stable::new_empty(qkv, {qkv.size(0), s.tokens, s.out()});
  const float* from = floats_of(qkv);
  float* to = floats_of(y);
  each_sample(qkv.size(0), s, [&](int64_t b, float* space) {
    kind().forward(s, from + b * s.tokens * s.row(), to + b * s.tokens * s.out(), space);
  });
  return y;
}

Tensor short_attention_backward_cpu(Tensor grad_y, Tensor qkv, int64_t heads) {
  const AttentionShape s = shape_of(qkv, heads);
  Tensor grad = torch::stable::new_empty(qkv, {qkv.size(0), s.tokens, s.row()});
  const float *from = floats_of(qkv), *dy = floats_of(grad_y);
  float* to = floats_of(grad);
  each_sample(qkv.size(0), s, [&](int64_t b, float* space) {
    const int64_t row = b * s.tokens * s.row();
    kind().backward(s, from + row, dy + b * s.tokens * s.out(), to + row, space);
  });
  return grad;
}

}  // namespace c2v

STABLE_TORCH_LIBRARY_IMPL(c2v_sim, CPU, m) {
  m.impl("short_attention", TORCH_BOX(&c2v::short_attention_cpu));
  m.impl("short_attention_backward", TORCH_BOX(&c2v::short_attention_backward_cpu));
}
