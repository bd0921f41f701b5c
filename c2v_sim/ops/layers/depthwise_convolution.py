"""depthwise_convolution: 3×3 of each channel by itself, for training on a CPU.

    y[n, c, i, j] = Σ x[n, c, stride i + r - 1, stride j + s - 1] w[c, 0, r, s]

x [N, C, H, W], w [C, 1, 3, 3], zeros of one pixel around the images, stride 1 or 2. Bound by
memory: a pixel takes part in nine products for each of its channels. The native backend makes both
gradients in one pass over dy, by rows that stay in the second-level cache
(csrc/cpu/layers/depthwise/); torch makes the gradient of the taps of small images with one thread
in scalar numbers. It works in channels_last: other tensors are copied into it, and y is
channels_last.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from c2v_sim.ops._dispatch import Operator
from c2v_sim.ops._loss import Context

STRIDES = (1, 2)
CHANNEL_STEP = 8  # other channels are read one by one


def depthwise_convolution(
    x: Tensor, w: Tensor, *, stride: int = 1, backend: str | None = None
) -> Tensor:  # [N, C, H, W] -> [N, C, (H - 1) // stride + 1, …]
    """The convolution, differentiable in x and w, also twice."""
    _check_shapes(x, w, stride)
    if _operator.choose(backend, x, w) == "native":
        x, w = x.contiguous(memory_format=torch.channels_last), w.contiguous()
        backend = "native"
    return _operator(x, w, stride, backend=backend)


def depthwise_pays(x: Tensor, channels: int) -> bool:
    """Whether the native backend is there and faster than torch, by the shapes alone."""
    if x.device.type != "cpu" or x.dtype != torch.float32 or x.dim() != 4:
        return False
    return channels % CHANNEL_STEP == 0 and x.numel() > 0 and "CPU" in _operator.native_keys


def _check_shapes(x: Tensor, w: Tensor, stride: int) -> None:
    if w.dim() != 4 or tuple(w.shape[1:]) != (1, 3, 3):
        raise ValueError(f"depthwise_convolution: w must be [C, 1, 3, 3], got {tuple(w.shape)}")
    if x.dim() != 4 or x.shape[1] != len(w) or min(x.shape[2:]) < 1:
        raise ValueError(
            f"depthwise_convolution: x must be [N, {len(w)}, H, W], H, W ≥ 1, got {tuple(x.shape)}"
        )
    if stride not in STRIDES:
        raise ValueError(f"depthwise_convolution: stride must be 1 or 2, got {stride}")


def depthwise_convolution_torch(x: Tensor, w: Tensor, stride: int) -> Tensor:
    """The definition."""
    return F.conv2d(x, w, stride=stride, padding=1, groups=len(w))


def depthwise_convolution_backward_torch(
    grad_y: Tensor, x: Tensor, w: Tensor, stride: int, need_x: bool, need_w: bool
) -> tuple[Tensor, Tensor]:
    """The gradients for x and w, empty where not needed; they can be differentiated again."""
    two, one = [stride, stride], [1, 1]
    grads = torch.ops.aten.convolution_backward(
        grad_y, x, w, None, two, one, one, False, [0, 0], len(w), [need_x, need_w, False]
    )
    dx, dw = (x.new_empty(0) if g is None else g for g in grads[:2])
    return dx, dw


def _fake(x: Tensor, w: Tensor, stride: int) -> Tensor:
    high, wide = ((side - 1) // stride + 1 for side in x.shape[2:])
    return x.new_empty(x.shape[0], high, wide, x.shape[1]).permute(0, 3, 1, 2)


def _fake_backward(
    grad_y: Tensor, x: Tensor, w: Tensor, stride: int, need_x: bool, need_w: bool
) -> tuple[Tensor, Tensor]:
    dx = x.new_empty(len(x) if need_x else 0, *x.shape[2:], x.shape[1]).permute(0, 3, 1, 2)
    return dx, w.new_empty(len(w) if need_w else 0, 1, 3, 3)


def _setup_context(ctx: Context, inputs: tuple, output: Tensor) -> None:
    x, w, ctx.stride = inputs
    ctx.save_for_backward(x, w)


def _backward(ctx: Context, grad_y: Tensor) -> tuple[Tensor | None, ...]:
    x, w = ctx.saved_tensors
    needed = ctx.needs_input_grad[:2]
    if torch.is_grad_enabled():  # the gradient is to be differentiated again
        grads = depthwise_convolution_backward_torch(grad_y, x, w, ctx.stride, *needed)
    else:
        grad_y = grad_y.contiguous(memory_format=torch.channels_last)
        grads = _backward_operator(grad_y, x, w, ctx.stride, *needed, backend="native")
    return *(g if n else None for g, n in zip(grads, needed, strict=True)), None


_operator = Operator(
    "depthwise_convolution",
    "(Tensor x, Tensor w, int stride) -> Tensor",
    depthwise_convolution_torch,
    fake=_fake,
    setup_context=_setup_context,
    backward=_backward,
    triton=False,
)
_backward_operator = Operator(
    "depthwise_convolution_backward",
    "(Tensor grad_y, Tensor x, Tensor w, int stride, bool need_x, bool need_w) -> (Tensor, Tensor)",
    depthwise_convolution_backward_torch,
    fake=_fake_backward,
    triton=False,
)
