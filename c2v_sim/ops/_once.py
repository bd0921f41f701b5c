"""Gradients that were computed, not recorded: differentiating them again must raise.

A fused operator's backward only scales saved numbers, so autograd would take its result for a
constant and leave out the second derivative in silence.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str, grad: Tensor, *inputs: Tensor) -> Tensor:
        ctx.name = name
        return grad.view_as(grad)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise RuntimeError(
            f"{ctx.name}: fused backends cannot be differentiated twice; use backend='torch'"
        )


def once_differentiable(
    name: str, grads: Sequence[Tensor | None], inputs: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """`grads` as they are, or under create_graph=True tied to `inputs` by a node that raises."""
    if not torch.is_grad_enabled():
        return tuple(grads)
    return tuple(None if g is None else _Once.apply(name, g, *inputs) for g in grads)
