"""reconstruction_loss: how far the decoder's output is from its input.

    L_recon = 1/(B·D) sum_{j,k} (d_hat[j,k] - d[j,k])²             2 × [B, D] -> scalar

Gradients go to both. The fused backends form loss and gradient in one read. Nothing to compare
(B·D = 0): 0. NaN and Inf propagate. Half storage is computed in float32.
"""

from typing import Any

import torch
from torch import Tensor

from c2v_sim.ops._dispatch import STORAGE, Operator
from c2v_sim.ops._once import once_differentiable


def reconstruction_loss(d_hat: Tensor, d: Tensor, *, backend: str | None = None) -> Tensor:
    """The mean squared difference of d_hat and d, both [B, D]."""
    if d_hat.dim() != 2:
        raise ValueError(f"reconstruction_loss: d_hat must be [B, D], got {tuple(d_hat.shape)}")
    if d.shape != d_hat.shape:
        raise ValueError(
            f"reconstruction_loss: d must have the shape of d_hat, {tuple(d_hat.shape)}, "
            f"got {tuple(d.shape)}"
        )
    with_grad = torch.is_grad_enabled() and (d_hat.requires_grad or d.requires_grad)
    return _operator(d_hat, d, with_grad, backend=backend)[0]


def reconstruction_loss_torch(
    d_hat: Tensor, d: Tensor, with_grad: bool = False
) -> tuple[Tensor, ...]:
    """The definition: (loss,)."""
    d_hat, d = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (d_hat, d))
    return ((d_hat - d).square().sum() / max(d.numel(), 1),)


def _fake(d_hat: Tensor, d: Tensor, with_grad: bool) -> tuple[Tensor, Tensor]:
    rows = d_hat.shape[0] if with_grad else 0
    return (
        d_hat.new_empty((), dtype=torch.float32),
        d_hat.new_empty((rows, d_hat.shape[1]), dtype=torch.float32),
    )


def _setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
    ctx.with_grad = inputs[2]
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:2], output[1])


def _backward(ctx: Any, upstream: Tensor | None, _: None) -> tuple:
    if upstream is None:
        return None, None, None
    if not ctx.with_grad:
        raise RuntimeError(
            "reconstruction_loss: called with with_grad=False, so no gradient was formed"
        )
    d_hat, d, grad = ctx.saved_tensors
    of_d_hat, of_d = ctx.needs_input_grad[:2]
    grads = [
        (upstream * grad).to(d_hat.dtype) if of_d_hat else None,
        (-upstream * grad).to(d.dtype) if of_d else None,  # d is the data: rarely asked for
    ]
    return *once_differentiable("reconstruction_loss", grads, [d_hat, d]), None


_operator = Operator(
    "reconstruction_loss",
    "(Tensor d_hat, Tensor d, bool with_grad) -> (Tensor, Tensor)",
    reconstruction_loss_torch,
    fake=_fake,
    setup_context=_setup_context,
    backward=_backward,
    dtypes=STORAGE,
)
