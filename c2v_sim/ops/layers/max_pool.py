"""max_pool: the largest of every 2×2 pixels, and ReLU of it if wanted, in one pass each way.

    y[n, c, i, j] = max(x[n, c, 2i, 2j], x[n, c, 2i, 2j + 1], x[n, c, 2i + 1, 2j], …)

x [N, C, H, W] → [N, C, H // 2, W // 2]. ReLU after the pool gives the values of ReLU before it.
Values and gradients have the bits of torch's: of equal pixels the first gets the gradient, NaN is
above all. The native backend works in channels_last and keeps a byte for each output instead of
the input.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from c2v_sim.ops._dispatch import Operator
from c2v_sim.ops._loss import Context


def max_pool(x: Tensor, *, relu: bool = False, backend: str | None = None) -> Tensor:
    """The pool of 2×2 with stride 2, differentiable in x, also twice."""
    if x.dim() != 4 or min(x.shape[2:]) < 2:
        raise ValueError(f"max_pool: x must be [N, C, H, W], H, W ≥ 2, got {tuple(x.shape)}")
    if _operator.choose(backend, x) == "torch" or x.device.type != "cpu":
        return max_pool_torch(x.permute(0, 2, 3, 1), relu)[0].permute(0, 3, 1, 2)
    images = x.permute(0, 2, 3, 1).contiguous()  # no copy of what is channels_last
    return _operator(images, relu, backend="native")[0].permute(0, 3, 1, 2)


def max_pool_torch(x: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
    """The definition, on [N, H, W, C]; where each output is from is torch's own affair."""
    y = F.max_pool2d(x.permute(0, 3, 1, 2), 2)
    y = F.relu(y) if relu else y
    return y.permute(0, 2, 3, 1), x.new_empty(0, dtype=torch.uint8)


def _fake(x: Tensor, relu: bool) -> tuple[Tensor, Tensor]:
    n, height, width, channels = x.shape
    y = x.new_empty(n, height // 2, width // 2, channels)
    return y, torch.empty_like(y, dtype=torch.uint8)


def _setup_context(ctx: Context, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    ctx.sides = inputs[0].shape[1:3]
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1])


def _backward(ctx: Context, grad_y: Tensor, _: Tensor) -> tuple[Tensor, None]:
    (which,) = ctx.saved_tensors
    if torch.is_grad_enabled():  # the gradient is to be differentiated again
        return spread(grad_y, which, *ctx.sides), None
    return torch.ops.c2v_sim.max_pool_backward(grad_y.contiguous(), which, *ctx.sides), None


def spread(grad_y: Tensor, which: Tensor, height: int, width: int) -> Tensor:
    """The gradient for x [N, H, W, C]: each number at the pixel that `which` says."""
    pixels = [torch.where(which == i, grad_y, 0.0) for i in range(4)]
    rows = [torch.stack(pixels[i : i + 2], dim=3) for i in (0, 2)]  # [N, h, w, 2, C]
    squares = torch.stack(rows, dim=2).flatten(3, 4).flatten(1, 2)
    return F.pad(squares, (0, 0, 0, width % 2, 0, height % 2))


_operator = Operator(
    "max_pool",
    "(Tensor x, bool relu) -> (Tensor, Tensor)",
    max_pool_torch,
    fake=_fake,
    setup_context=_setup_context,
    backward=_backward,
    triton=False,
)
