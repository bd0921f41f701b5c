"""Losses whose fused backends form the gradient beside the value: the autograd wiring, once.

Such an operator takes tensors, then options, the last of which is `with_grad`, and returns the
loss and its gradients for unit upstream (empty without with_grad). Backward scales what was saved.
So autograd would take its result for a constant and leave out the second derivative in silence:
differentiating it again raises instead.

And unit_rows, the cosines of every torch reference.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from c2v_sim.ops._dispatch import STORAGE, Operator

Context = Any  # torch's ctx, on which a function may keep whatever it likes
Gradients = Sequence[Tensor | None]


def loss_operator(
    name: str,
    schema: str,
    reference: Callable[..., tuple[Tensor, ...]],
    *,
    fake: Callable[..., tuple[Tensor, ...]],
    scaled: Callable[[Tensor, Sequence[Tensor], Sequence[int | bool]], Gradients],
) -> Operator[tuple[Tensor, ...]]:
    """An Operator with the gradients of such a loss.

    `scaled(upstream, saved gradients, options)` gives the gradient for each tensor argument, None
    for one that takes none; those after the last that it gives take none.
    """

    def setup_context(ctx: Context, inputs: tuple, output: tuple[Tensor, ...]) -> None:
        ctx.options = [a for a in inputs if not isinstance(a, Tensor)]
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*(a for a in inputs if isinstance(a, Tensor)), *output[1:])
        ctx.tensors = len(inputs) - len(ctx.options)

    def backward(ctx: Context, upstream: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        nothing = (None,) * len(ctx.options)
        if upstream is None:
            return (None,) * ctx.tensors + nothing
        if not ctx.options[-1]:
            raise RuntimeError(f"{name}: called with with_grad=False, so no gradient was formed")
        inputs, saved = ctx.saved_tensors[: ctx.tensors], ctx.saved_tensors[ctx.tensors :]
        grads = list(scaled(upstream, saved, ctx.options))
        grads += [None] * (ctx.tensors - len(grads))
        return (*_tied(name, grads, inputs), *nothing)

    return Operator(
        name, schema, reference, fake=fake, setup_context=setup_context, backward=backward,
        dtypes=STORAGE,
    )  # fmt: skip


def _tied(name: str, grads: Gradients, inputs: Sequence[Tensor]) -> Gradients:
    """`grads` in their inputs' dtypes; under create_graph=True a node that raises holds them."""
    typed = [None if g is None else g.to(x.dtype) for g, x in zip(grads, inputs, strict=True)]
    if not torch.is_grad_enabled():
        return typed
    return [None if g is None else _Once.apply(name, g, *inputs) for g in typed]


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, name: str, grad: Tensor, *inputs: Tensor) -> Tensor:
        ctx.name = name
        return grad.view_as(grad)

    @staticmethod
    def backward(ctx: Context, *_: Tensor) -> None:
        raise RuntimeError(
            f"{ctx.name}: fused backends cannot be differentiated twice; use backend='torch'"
        )


def unit_rows(x: Tensor) -> tuple[Tensor, Tensor]:  # [N, D] -> [N, D], [N]
    """Rows of length 1, and the lengths; a zero row stays zero, with length 0 and no gradient.

    Scaled by the largest element first, so that squares neither overflow nor vanish.
    """
    if x.shape[1] == 0:
        return x, x.new_zeros(len(x))
    largest = x.detach().abs().amax(dim=1, keepdim=True)
    zero = largest == 0
    scaled = x / torch.where(zero, 1, largest)
    # The inner where keeps 0/0 out of the gradient.
    length = torch.linalg.vector_norm(torch.where(zero, 1, scaled), dim=1, keepdim=True)
    return torch.where(zero, 0, scaled / length), (largest * length).squeeze(1)
