// The schemas of all native operators. Kernels are registered at the end of cpu/<op>.cpp (CPU)
// and in cuda/bindings.cpp (CUDA); fake kernels and gradients in c2v_sim/ops/<op>.py.
#include "ops.h"

STABLE_TORCH_LIBRARY(c2v_sim, m) {
  m.def(
      "client_scores(Tensor feature_index, Tensor? label_index, Tensor cohort, Tensor omega) "
      "-> Tensor");
  m.def(
      "sgd_step(Tensor(a!) params, Tensor(b!) grads, Tensor(c!)? momentum_buffer, Tensor options, "
      "Tensor? linear, Tensor? anchor, bool clip, bool zero_grads) -> ()");
  m.def("weighted_sum(Tensor arena, Tensor weights, Tensor(a!) out) -> ()");
}
