"""distillation_loss: pulls the projected classifier's prediction to that of the full one.

    L_dist = mean_j KL(softmax(logits[j]) || softmax(logits_p[j]))         2 × [B, K] -> scalar

Gradients go to both. The fused backends read each row once and give loss and gradients together;
the maximum is subtracted, so logits of any size are safe. NaN and Inf give a loss that is not
finite. No rows: 0. Half storage is computed in float32, and the loss is float32 then.
"""

from typing import Any

import torch
from torch import Tensor

from c2v_sim.ops._dispatch import STORAGE, Operator
from c2v_sim.ops._once import once_differentiable


def distillation_loss(logits: Tensor, logits_p: Tensor, *, backend: str | None = None) -> Tensor:
    """Mean KL divergence of softmax(logits_p) from softmax(logits), both [B, K]."""
    if logits.dim() != 2 or logits.shape[1] == 0:
        raise ValueError(
            f"distillation_loss: logits must be [B, K] with K > 0, got {tuple(logits.shape)}"
        )
    if logits_p.shape != logits.shape:
        raise ValueError(
            f"distillation_loss: logits_p must have the shape of logits, {tuple(logits.shape)}, "
            f"got {tuple(logits_p.shape)}"
        )
    if backend is None and logits.is_cuda and logits.shape[1] > 8192:
        backend = "torch"  # the Triton kernel holds a row in registers
    with_grad = torch.is_grad_enabled() and (logits.requires_grad or logits_p.requires_grad)
    return _operator(logits, logits_p, with_grad, backend=backend)[0]


def distillation_loss_torch(
    logits: Tensor, logits_p: Tensor, with_grad: bool = False
) -> tuple[Tensor, ...]:
    """The definition: (loss,)."""
    logits, logits_p = (
        t.to(torch.promote_types(t.dtype, torch.float32)) for t in (logits, logits_p)
    )
    if len(logits) == 0:
        return ((logits + logits_p).sum(),)
    log_p, log_q = logits.log_softmax(1), logits_p.log_softmax(1)
    return ((log_p.exp() * (log_p - log_q)).sum(1).mean(),)


def _fake(logits: Tensor, logits_p: Tensor, with_grad: bool) -> tuple[Tensor, ...]:
    shape = (logits.shape[0] if with_grad else 0, logits.shape[1])
    loss = logits.new_empty((), dtype=torch.float32)
    grad, grad_p = (logits.new_empty(shape, dtype=torch.float32) for _ in range(2))
    return loss, grad, grad_p


def _setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
    ctx.with_grad = inputs[2]
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:2], *output[1:])


def _backward(ctx: Any, upstream: Tensor | None, *_: None) -> tuple:
    if upstream is None:
        return None, None, None
    if not ctx.with_grad:
        raise RuntimeError(
            "distillation_loss: called with with_grad=False, so no gradient was formed"
        )
    logits, logits_p, grad, grad_p = ctx.saved_tensors
    grads = [(upstream * g).to(x.dtype) for g, x in ((grad, logits), (grad_p, logits_p))]
    return *once_differentiable("distillation_loss", grads, [logits, logits_p]), None


_operator = Operator(
    "distillation_loss",
    "(Tensor logits, Tensor logits_p, bool with_grad) -> (Tensor, Tensor, Tensor)",
    distillation_loss_torch,
    fake=_fake,
    setup_context=_setup_context,
    backward=_backward,
    dtypes=STORAGE,
)
