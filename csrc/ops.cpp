// The schemas of all native operators. Kernels are registered at the end of cpu/<op>.cpp (CPU)
// and in cuda/bindings.cpp (CUDA); fake kernels and gradients in c2v_sim/ops/<op>.py.
#include "ops.h"

STABLE_TORCH_LIBRARY(c2v_sim, m) {
  m.def(
      "client_scores(Tensor feature_index, Tensor? label_index, Tensor cohort, Tensor omega) "
      "-> Tensor");
  m.def("convolution(Tensor x, Tensor w, Tensor? bias, int padding, int stride) -> Tensor");
  m.def(
      "convolution_backward(Tensor grad_y, Tensor x, Tensor w, int padding, int stride, "
      "bool need_x, bool need_w, bool need_b) -> (Tensor, Tensor, Tensor)");
  m.def("depthwise_convolution(Tensor x, Tensor w, int stride) -> Tensor");
  m.def(
      "depthwise_convolution_backward(Tensor grad_y, Tensor x, Tensor w, int stride, bool need_x, "
      "bool need_w) -> (Tensor, Tensor)");
  m.def(
      "fused_ffn(Tensor x, Tensor w1, Tensor b1, Tensor w2, Tensor b2, Tensor seed, "
      "float dropout) -> Tensor");
  m.def(
      "fused_ffn_backward(Tensor grad_y, Tensor x, Tensor w1, Tensor b1, Tensor w2, Tensor seed, "
      "float dropout, bool need_x, bool need_w) -> (Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "index_losses(Tensor z, Tensor u, Tensor l, Tensor? counts, int terms, bool with_grad) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def("max_pool(Tensor x, bool relu) -> (Tensor, Tensor)");
  m.def("max_pool_backward(Tensor grad_y, Tensor which, int height, int width) -> Tensor");
  m.def(
      "normalize(Tensor x, Tensor w, Tensor b, Tensor? shortcut, Tensor? mean, Tensor? var, "
      "int groups, float eps, float most) -> (Tensor, Tensor, Tensor)");
  m.def(
      "normalize_backward(Tensor grad_y, Tensor x, Tensor y, Tensor w, Tensor mean, Tensor var, "
      "int groups, float eps, float most, bool need_shortcut) "
      "-> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "pooled_convolution(Tensor x, Tensor w, Tensor? bias, int padding) -> (Tensor, Tensor)");
  m.def(
      "pooled_convolution_backward(Tensor grad_y, Tensor which, Tensor x, Tensor w, int padding, "
      "bool need_x, bool need_w, bool need_b) -> (Tensor, Tensor, Tensor)");
  m.def(
      "projection_orthogonality(Tensor z_p, Tensor index, Tensor? lengths, bool with_grad) "
      "-> (Tensor, Tensor)");
  m.def(
      "sgd_step(Tensor(a!) params, Tensor(b!) grads, Tensor(c!)? momentum_buffer, Tensor options, "
      "Tensor? linear, Tensor? anchor, bool clip, bool zero_grads) -> ()");
  m.def("short_attention(Tensor qkv, int heads) -> Tensor");
  m.def("short_attention_backward(Tensor grad_y, Tensor qkv, int heads) -> Tensor");
  m.def("weighted_sum(Tensor arena, Tensor weights, Tensor(a!) out) -> ()");
  m.def("weighted_sum_add(Tensor row, float weight, Tensor(a!) out) -> ()");
}
