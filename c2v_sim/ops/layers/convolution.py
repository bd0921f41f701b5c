"""convolution: 1×1, 3×3 and 5×5 of stride 1 or 2, for training on a CPU.

    y[n, k, i, j] = bias[k] + Σ x[n, c, d i + r - padding, d j + s - padding] w[k, c, r, s]

x [N, C, H, W], w [K, C, T, T], T = 1, 3 or 5, stride d, padding less than T. The native backend
works in channels_last: other tensors are copied into it, and y is channels_last. It has two ways:

  minimal filtering (csrc/cpu/layers/winograd/) for stride 1 with 16 channels and filters or more:
  4 or 2.25 times fewer products for 3×3, by the size of the image, and 2.8 times fewer for 5×5,
  forward and in both gradients;
  the definition (csrc/cpu/layers/direct/) for the rest: small convolutions of stride 2 and of few
  channels, where torch stays far below the rate of the core.

Exactness. Rounding errors of the definition and of F(2×2, 3×3) are those of torch's convolution;
F(4×4, 3×3) and F(2×2, 5×5) have a few times more, below 1e-5 of the norm: the one exception to the
rule that an operator's error is at most twice torch's (docs/kernels.md has the numbers). The choice
of the method depends on shapes alone, so bits do not depend on lanes, ranks or load; they do depend
on the kind of CPU.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from c2v_sim.ops._dispatch import Operator
from c2v_sim.ops._loss import Context

TAPS, STRIDES = (1, 3, 5), (1, 2)
# Measured by bench/convolutions.py: below, the transforms cost what the products gain.
FEWEST_CHANNELS, CHANNEL_STEP, FEWEST_TILES = 16, 16, 24
# Without transforms: the taps must stay in the second-level cache; enough pixels repay the call.
MOST_TAPS, FEWEST_PIXELS, NARROWEST, MOST_FILTERS_OF_FEW = 32_768, 1024, 4, 32


def convolution(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    *,
    padding: int = 0,
    stride: int = 1,
    backend: str | None = None,
) -> Tensor:  # [N, C, H, W] -> [N, K, (H + 2 padding - T) // stride + 1, …]
    """The convolution, differentiable in x, w and bias, also twice."""
    check_shapes(x, w, bias, padding, stride)
    if _operator.choose(backend, x, w) == "native":
        x, w = (t.contiguous(memory_format=torch.channels_last) for t in (x, w))
        backend = "native"
    return _operator(x, w, bias, padding, stride, backend=backend)


def pays(x: Tensor, filters: int, channels: int, taps: int, padding: int, stride: int = 1) -> bool:
    """Whether the native backend is there and faster than torch, by the shapes alone."""
    if x.device.type != "cpu" or x.dtype != torch.float32 or x.dim() != 4 or taps not in TAPS:
        return False
    if stride not in STRIDES or "CPU" not in _operator.native_keys:
        return False
    high, wide = output_sides(x, taps, padding, stride)
    if stride > 1 or channels < FEWEST_CHANNELS:
        return _definition_pays(x.shape[0] * high * wide, wide, filters, channels, taps, stride)
    if taps == 1 or filters < FEWEST_CHANNELS or (filters | channels) % CHANNEL_STEP:
        return False
    return high > 1 and wide > 1 and x.shape[0] * (high // 2) * (wide // 2) >= FEWEST_TILES


def _definition_pays(
    pixels: int, wide: int, filters: int, channels: int, taps: int, stride: int
) -> bool:
    """pays() without transforms: stride 2, or the few channels of a first layer."""
    if pixels < FEWEST_PIXELS or wide < NARROWEST or filters % CHANNEL_STEP:
        return False
    if taps**2 * channels * filters > MOST_TAPS:
        return False
    return stride > 1 or (taps > 1 and filters <= MOST_FILTERS_OF_FEW)


def output_sides(x: Tensor, taps: int, padding: int, stride: int) -> tuple[int, int]:
    """Height and width of y."""
    high, wide = ((side + 2 * padding - taps) // stride + 1 for side in x.shape[2:])
    return high, wide


def check_shapes(x: Tensor, w: Tensor, bias: Tensor | None, padding: int, stride: int) -> None:
    if w.dim() != 4 or w.shape[2] != w.shape[3] or w.shape[2] not in TAPS:
        raise ValueError(
            f"convolution: w must be [K, C, T, T], T = 1, 3 or 5, got {tuple(w.shape)}"
        )
    if x.dim() != 4 or x.shape[1] != w.shape[1]:
        raise ValueError(f"convolution: x must be [N, {w.shape[1]}, H, W], got {tuple(x.shape)}")
    if not 0 <= padding < w.shape[2]:
        raise ValueError(f"convolution: padding must be in [0, {w.shape[2]}), got {padding}")
    if stride not in STRIDES:
        raise ValueError(f"convolution: stride must be 1 or 2, got {stride}")
    if min(x.shape[2:]) + 2 * padding < w.shape[2]:
        raise ValueError(f"convolution: images {tuple(x.shape[2:])} are smaller than the filter")
    if bias is not None and bias.shape != w.shape[:1]:
        raise ValueError(f"convolution: bias must be [{w.shape[0]}], got {tuple(bias.shape)}")


def convolution_torch(
    x: Tensor, w: Tensor, bias: Tensor | None, padding: int, stride: int
) -> Tensor:
    """The definition."""
    return F.conv2d(x, w, bias, stride, padding)


def convolution_backward_torch(
    grad_y: Tensor,
    x: Tensor,
    w: Tensor,
    padding: int,
    stride: int,
    need_x: bool,
    need_w: bool,
    need_b: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients for x, w and bias, empty where not needed; they can be differentiated again."""
    steps, pad = [stride, stride], [padding, padding]
    sizes = [w.shape[0]] if need_b else None
    grads = torch.ops.aten.convolution_backward(
        grad_y, x, w, sizes, steps, pad, [1, 1], False, [0, 0], 1, [need_x, need_w, need_b]
    )
    dx, dw, db = (x.new_empty(0) if g is None else g for g in grads)
    return dx, dw, db


def _fake(x: Tensor, w: Tensor, bias: Tensor | None, padding: int, stride: int) -> Tensor:
    high, wide = output_sides(x, w.shape[2], padding, stride)
    return x.new_empty(x.shape[0], high, wide, w.shape[0]).permute(0, 3, 1, 2)


def fake_backward(
    grad_y: Tensor,
    x: Tensor,
    w: Tensor,
    padding: int,
    stride: int,
    need_x: bool,
    need_w: bool,
    need_b: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    dx, dw = (
        t.new_empty(len(t) if needed else 0, *t.shape[2:], t.shape[1]).permute(0, 3, 1, 2)
        for t, needed in ((x, need_x), (w, need_w))
    )
    return dx, dw, x.new_empty(w.shape[0] if need_b else 0)


def _setup_context(ctx: Context, inputs: tuple, output: Tensor) -> None:
    x, w, bias, *ctx.steps = inputs
    ctx.has_bias = bias is not None
    ctx.save_for_backward(x, w)


def _backward(ctx: Context, grad_y: Tensor) -> tuple[Tensor | None, ...]:
    x, w = ctx.saved_tensors
    needed = (*ctx.needs_input_grad[:2], ctx.has_bias and ctx.needs_input_grad[2])
    if torch.is_grad_enabled():  # the gradient is to be differentiated again
        grads = convolution_backward_torch(grad_y, x, w, *ctx.steps, *needed)
    else:
        grad_y = grad_y.contiguous(memory_format=torch.channels_last)
        grads = _backward_operator(grad_y, x, w, *ctx.steps, *needed, backend="native")
    return *(g if n else None for g, n in zip(grads, needed, strict=True)), None, None


_operator = Operator(
    "convolution",
    "(Tensor x, Tensor w, Tensor? bias, int padding, int stride) -> Tensor",
    convolution_torch,
    fake=_fake,
    setup_context=_setup_context,
    backward=_backward,
    triton=False,
)
_backward_operator = Operator(
    "convolution_backward",
    "(Tensor grad_y, Tensor x, Tensor w, int padding, int stride, bool need_x, bool need_w, "
    "bool need_b) -> (Tensor, Tensor, Tensor)",
    convolution_backward_torch,
    fake=fake_backward,
    triton=False,
)
