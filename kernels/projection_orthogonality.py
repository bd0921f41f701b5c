"""projection_orthogonality: the pairs of index_losses with the constant index as b."""

import torch
from torch import Tensor

from c2v_sim.kernels.index_losses import (
    ABSOLUTE,
    aot_pairs,
    as_they_are,
    pair_gradient,
    pair_sums,
    unit_rows,
)


def projection_orthogonality(
    z_p: Tensor, index: Tensor, lengths: Tensor | None, with_grad: bool
) -> tuple[Tensor, Tensor]:  # [B, D], [M, D] -> [], [B, D] or [0, D]
    """Launch on the current stream: the mean of |<z, index>| and its gradient for z_p.

    With `lengths` [M] the index has unit rows of those that were so long, and it is |cos|.
    """
    (size, dim), clients = z_p.shape, len(index)
    grad = z_p.new_zeros((size if with_grad else 0, dim), dtype=torch.float32)
    if size == 0 or clients == 0:
        return z_p.new_zeros((), dtype=torch.float32), grad
    with torch.cuda.device_of(z_p):
        cosine = lengths is not None
        a = (unit_rows if cosine else as_they_are)(z_p.contiguous()[None])
        b = as_they_are(index[None], lengths[None] if cosine else None)
        if with_grad:
            sums, (grad,) = pair_gradient(a, b, ABSOLUTE, 1 / (size * clients))
        else:
            sums = pair_sums(a, b, ABSOLUTE)
    return sums.mean() / clients, grad


# Cosines are compiled under index_losses.
AOT = aot_pairs(ABSOLUTE, normalised=False)
