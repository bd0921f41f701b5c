"""short_attention: attention over few tokens by narrow heads, which no matrix product is made for.

    y[b, t, h] = sum_j softmax_j(<q[b, t, h], k[b, j, h]> / √w) v[b, j, h]

qkv [B, T, 3·H·w] (queries, keys and values of all heads side by side) → [B, T, H·w]. The native
backend keeps nothing but qkv for the gradient: the shares are made again, in registers. There is
no dropout.
"""

import math

import torch
from torch import Tensor

from c2v_sim.ops._dispatch import Operator
from c2v_sim.ops._loss import Context


def short_attention(qkv: Tensor, heads: int, *, backend: str | None = None) -> Tensor:
    """The attention of all heads, differentiable in qkv, also twice."""
    if qkv.dim() != 3 or heads < 1 or qkv.shape[2] == 0 or qkv.shape[2] % (3 * heads):
        raise ValueError(
            f"short_attention: qkv must be [B, T, 3·{heads}·w], got {tuple(qkv.shape)}"
        )
    return _operator(qkv.contiguous(), heads, backend=backend)


def short_attention_torch(qkv: Tensor, heads: int) -> Tensor:
    """The definition."""
    batch, tokens, columns = qkv.shape
    width = columns // (3 * heads)
    q, k, v = qkv.view(batch, tokens, 3, heads, width).permute(2, 0, 3, 1, 4)  # [B, H, T, w]
    # Scaling q costs less than scaling the scores.
    shares = torch.softmax((q / math.sqrt(width)) @ k.transpose(2, 3), dim=3)
    return (shares @ v).transpose(1, 2).reshape(batch, tokens, heads * width)


def _fake(qkv: Tensor, heads: int) -> Tensor:
    return qkv.new_empty(*qkv.shape[:2], qkv.shape[2] // 3)


def _setup_context(ctx: Context, inputs: tuple, output: Tensor) -> None:
    ctx.heads = inputs[1]
    ctx.save_for_backward(inputs[0])


def _backward(ctx: Context, grad_y: Tensor) -> tuple[Tensor, None]:
    (qkv,) = ctx.saved_tensors
    if torch.is_grad_enabled():  # the gradient is to be differentiated again
        y = short_attention_torch(qkv, ctx.heads)
        return torch.autograd.grad(y, qkv, grad_y, create_graph=True)[0], None
    grad = torch.ops.c2v_sim.short_attention_backward(grad_y.contiguous(), qkv, ctx.heads)
    return grad, None


_operator = Operator(
    "short_attention",
    "(Tensor qkv, int heads) -> Tensor",
    short_attention_torch,
    fake=_fake,
    setup_context=_setup_context,
    backward=_backward,
    triton=False,
)
