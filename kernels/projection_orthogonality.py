"""projection_orthogonality: the pair kernels of index_losses with the constant index as b."""

import torch
from torch import Tensor

from c2v_sim.kernels.index_losses import (
    ABSOLUTE,
    aot_pairs,
    as_they_are,
    lengths,
    pair_gradient,
    pair_sums,
)


def projection_orthogonality(
    z_p: Tensor, index: Tensor, cosine: bool, with_grad: bool
) -> tuple[Tensor, Tensor]:  # [B, D], [M, D] -> [], [B, D] or [0, D]
    """Launch on the current stream: the mean of |<z, index>| or |cos|, and its gradient for z_p."""
    (size, dim), clients = z_p.shape, len(index)
    grad = z_p.new_zeros((size if with_grad else 0, dim), dtype=torch.float32)
    if size == 0 or clients == 0:
        return z_p.new_zeros((), dtype=torch.float32), grad
    with torch.cuda.device_of(z_p):
        z_p, index = z_p.contiguous(), index.contiguous()
        scales = lengths if cosine else as_they_are
        of_z, of_index = scales(z_p), scales(index)
        sums = pair_sums(z_p, index, of_z, of_index, ABSOLUTE)
        if with_grad:
            scale = 1 / (size * clients)
            grad = pair_gradient(
                z_p, index, of_z, of_index, sums, ABSOLUTE, scale, normalised=cosine
            )
    return sums.mean() / clients, grad


# float32 cosines are compiled under index_losses; here the rest, and the half storage that a large
# index may have.
AOT = [
    *aot_pairs(ABSOLUTE, "*bf16"),
    *(aot_pairs(ABSOLUTE, storage, normalised=False)[1] for storage in ("*fp32", "*bf16")),
]
