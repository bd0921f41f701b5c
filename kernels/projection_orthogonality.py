"""projection_orthogonality: the pair kernels of index_losses with the constant index as b."""

import torch
from torch import Tensor

from c2v_sim.kernels.index_losses import ABSOLUTE, aot_pairs, lengths, pair_gradient, pair_sums


def projection_orthogonality(
    z_p: Tensor, index: Tensor, with_grad: bool
) -> tuple[Tensor, Tensor]:  # [B, D], [M, D] -> [], [B, D] or [0, D]
    """Launch on the current stream: the mean |cos| and its gradient for z_p."""
    (size, dim), clients = z_p.shape, len(index)
    grad = z_p.new_zeros((size if with_grad else 0, dim), dtype=torch.float32)
    if size == 0 or clients == 0:
        return z_p.new_zeros((), dtype=torch.float32), grad
    with torch.cuda.device_of(z_p):
        z_p, index = z_p.contiguous(), index.contiguous()
        of_z, of_index = lengths(z_p), lengths(index)
        sums = pair_sums(z_p, index, of_z, of_index, ABSOLUTE)
        if with_grad:
            scale = 1 / (size * clients)
            grad = pair_gradient(z_p, index, of_z, of_index, sums, ABSOLUTE, scale)
    return sums.mean() / clients, grad


# float32 is compiled under index_losses; here the half storage that a large index may have.
AOT = aot_pairs(ABSOLUTE, "*bf16")
