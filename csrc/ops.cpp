// The schemas of all native operators. Kernels are registered at the end of cpu/<op>.cpp (CPU)
// and cuda/<op>.cpp (CUDA); fake kernels and gradients in c2v_sim/ops/<op>.py.
#include "ops.h"

STABLE_TORCH_LIBRARY(c2v_sim, m) {
  m.def(
      "distillation_loss(Tensor logits, Tensor logits_p, bool with_grad) "
      "-> (Tensor, Tensor, Tensor)");
  m.def(
      "index_losses(Tensor z, Tensor u, Tensor l, int terms, bool with_grad) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "projection_orthogonality(Tensor z_p, Tensor index, bool with_grad) -> (Tensor, Tensor)");
  m.def("reconstruction_loss(Tensor d_hat, Tensor d, bool with_grad) -> (Tensor, Tensor)");
  m.def("weighted_sum(Tensor arena, Tensor weights, Tensor(a!) out) -> ()");
}
