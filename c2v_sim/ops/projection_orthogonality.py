"""projection_orthogonality: keeps projected features away from every client's feature index.

    L_orth = 1/(B·M) sum_{j,i} |cos(z_p[j], index[i])|            [B, D], [M, D] -> scalar

with the cosine, zero vectors, NaN and half storage as in index_losses. The index is a constant:
it takes no gradient. The fused backends stream it by and never form the B×M cosines. No rows or
no clients: 0.
"""

from typing import Any

import torch
from torch import Tensor

from c2v_sim.ops._dispatch import STORAGE, Operator
from c2v_sim.ops._once import once_differentiable
from c2v_sim.ops.index_losses import cosines_torch


def projection_orthogonality(z_p: Tensor, index: Tensor, *, backend: str | None = None) -> Tensor:
    """The mean absolute cosine of z_p [B, D] with the constant index [M, D]."""
    if z_p.dim() != 2:
        raise ValueError(f"projection_orthogonality: z_p must be [B, D], got {tuple(z_p.shape)}")
    if index.dim() != 2 or index.shape[1] != z_p.shape[1]:
        raise ValueError(
            f"projection_orthogonality: index must be [M, {z_p.shape[1]}], got {tuple(index.shape)}"
        )
    if index.requires_grad:
        raise ValueError("projection_orthogonality: index is a constant; pass index.detach()")
    with_grad = torch.is_grad_enabled() and z_p.requires_grad
    return _operator(z_p, index, with_grad, backend=backend)[0]


def projection_orthogonality_torch(
    z_p: Tensor, index: Tensor, with_grad: bool = False
) -> tuple[Tensor, ...]:
    """The definition: (loss,)."""
    z_p, index = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (z_p, index))
    if len(z_p) == 0 or len(index) == 0:
        return (z_p[:0].sum(),)
    return (cosines_torch(z_p, index).abs().mean(),)


def _fake(z_p: Tensor, index: Tensor, with_grad: bool) -> tuple[Tensor, Tensor]:
    rows = z_p.shape[0] if with_grad else 0
    return (
        z_p.new_empty((), dtype=torch.float32),
        z_p.new_empty((rows, z_p.shape[1]), dtype=torch.float32),
    )


def _setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
    ctx.with_grad = inputs[2]
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(inputs[0], output[1])


def _backward(ctx: Any, upstream: Tensor | None, _: None) -> tuple:
    if upstream is None:
        return None, None, None
    if not ctx.with_grad:
        raise RuntimeError(
            "projection_orthogonality: called with with_grad=False, so no gradient was formed"
        )
    z_p, grad = ctx.saved_tensors
    grads = [(upstream * grad).to(z_p.dtype)]
    return *once_differentiable("projection_orthogonality", grads, [z_p]), None, None


_operator = Operator(
    "projection_orthogonality",
    "(Tensor z_p, Tensor index, bool with_grad) -> (Tensor, Tensor)",
    projection_orthogonality_torch,
    fake=_fake,
    setup_context=_setup_context,
    backward=_backward,
    dtypes=STORAGE,
)
