"""pooled_convolution: a convolution of stride 1, ReLU and the pool of 2×2 in one pass each way.

    y = max_pool(convolution(x, w, bias, padding), relu=True)

x [N, C, H, W], w [K, C, T, T], T = 1, 3 or 5 → [N, K, h // 2, w // 2], h and w those of the
convolution. The native backend has the ways and the bits of ops/layers/convolution.py and
ops/layers/max_pool.py; what is between them is never in memory: tiles and rows of outputs are
pooled where they are made, and a byte for each result says which of the four it is. From that the
backward pass makes their gradients where it needs them.
"""

import torch
from torch import Tensor

from c2v_sim.ops._dispatch import Operator
from c2v_sim.ops._loss import Context
from c2v_sim.ops.layers.convolution import (
    check_shapes,
    convolution_backward_torch,
    convolution_torch,
    fake_backward,
    output_sides,
    pays,
)
from c2v_sim.ops.layers.max_pool import max_pool_torch, spread


def pooled_convolution(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    *,
    padding: int = 0,
    backend: str | None = None,
) -> Tensor:  # [N, C, H, W] -> [N, K, (H + 2 padding - T + 1) // 2, …]
    """The three, differentiable in x, w and bias, also twice."""
    check_shapes(x, w, bias, padding, 1)
    if min(output_sides(x, w.shape[2], padding, 1)) < 2:
        raise ValueError(f"pooled_convolution: images {tuple(x.shape[2:])} leave nothing to pool")
    if _operator.choose(backend, x, w) == "native":
        x, w = (t.contiguous(memory_format=torch.channels_last) for t in (x, w))
        backend = "native"
    return _operator(x, w, bias, padding, backend=backend)[0]


def pooled_pays(
    x: Tensor, filters: int, channels: int, taps: int, padding: int, stride: int
) -> bool:
    """Whether the native backend is there and faster than torch's convolution, by the shapes."""
    if stride > 1 or "CPU" not in _operator.native_keys:
        return False
    large = pays(x, filters, channels, taps, padding)
    return large and min(output_sides(x, taps, padding, stride)) > 1


def pooled_convolution_torch(
    x: Tensor, w: Tensor, bias: Tensor | None, padding: int
) -> tuple[Tensor, Tensor]:
    """The definition; where each output is from is torch's own affair."""
    full = convolution_torch(x, w, bias, padding, 1)
    y, which = max_pool_torch(full.permute(0, 2, 3, 1), relu=True)
    return y.permute(0, 3, 1, 2), which


def pooled_convolution_backward_torch(
    grad_y: Tensor,
    which: Tensor,
    x: Tensor,
    w: Tensor,
    padding: int,
    need_x: bool,
    need_w: bool,
    need_b: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients for x, w and bias, empty where not needed; they can be differentiated again."""
    high, wide = output_sides(x, w.shape[2], padding, 1)
    grad = spread(grad_y.permute(0, 2, 3, 1), which, high, wide).permute(0, 3, 1, 2)
    return convolution_backward_torch(grad, x, w, padding, 1, need_x, need_w, need_b)


def _fake(x: Tensor, w: Tensor, bias: Tensor | None, padding: int) -> tuple[Tensor, Tensor]:
    high, wide = (side // 2 for side in output_sides(x, w.shape[2], padding, 1))
    y = x.new_empty(x.shape[0], high, wide, w.shape[0])
    return y.permute(0, 3, 1, 2), torch.empty_like(y, dtype=torch.uint8)


def _fake_backward(
    grad_y: Tensor,
    which: Tensor,
    x: Tensor,
    w: Tensor,
    padding: int,
    need_x: bool,
    need_w: bool,
    need_b: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return fake_backward(grad_y, x, w, padding, 1, need_x, need_w, need_b)


def _setup_context(ctx: Context, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    x, w, bias, ctx.padding = inputs
    ctx.has_bias = bias is not None
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1], x, w)


def _backward(ctx: Context, grad_y: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    which, x, w = ctx.saved_tensors
    needed = (*ctx.needs_input_grad[:2], ctx.has_bias and ctx.needs_input_grad[2])
    if torch.is_grad_enabled():  # the gradient is to be differentiated again
        grads = pooled_convolution_backward_torch(grad_y, which, x, w, ctx.padding, *needed)
    else:
        grad_y = grad_y.contiguous(memory_format=torch.channels_last)
        given = (grad_y, which, x, w, ctx.padding)
        grads = _backward_operator(*given, *needed, backend="native")
    return *(g if n else None for g, n in zip(grads, needed, strict=True)), None


_operator = Operator(
    "pooled_convolution",
    "(Tensor x, Tensor w, Tensor? bias, int padding) -> (Tensor, Tensor)",
    pooled_convolution_torch,
    fake=_fake,
    setup_context=_setup_context,
    backward=_backward,
    triton=False,
)
_backward_operator = Operator(
    "pooled_convolution_backward",
    "(Tensor grad_y, Tensor which, Tensor x, Tensor w, int padding, bool need_x, bool need_w, "
    "bool need_b) -> (Tensor, Tensor, Tensor)",
    pooled_convolution_backward_torch,
    fake=_fake_backward,
    triton=False,
)
