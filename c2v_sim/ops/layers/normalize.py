"""normalize: a group or batch norm of images with what follows it, in one pass each way.

    y = cut((x - mean) / sqrt(var + eps) · w + b + shortcut)        cut(v) = min(max(v, 0), most)

x [N, C, H, W]; w, b [C]. Mean and variance (of all numbers, not of all but one) are those of a
group of channels in one image, or with `groups` 0 those of a channel in the whole batch, unless
they are given. most = inf is ReLU, 6 is ReLU6, 0 cuts nothing. Bound by memory: torch reads and
writes the same numbers half as often again. The native backend works in channels_last
(csrc/cpu/normalize/): other tensors are copied into it, and y is channels_last.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import has_torch_function

from c2v_sim.ops._dispatch import Operator
from c2v_sim.ops._loss import Context

CHANNEL_STEP = 8  # other channels are read one by one


def normalize(
    x: Tensor,
    w: Tensor,
    b: Tensor,
    *,
    groups: int,
    eps: float = 1e-5,
    known: tuple[Tensor, Tensor] | None = None,
    shortcut: Tensor | None = None,
    most: float = 0.0,
    backend: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """y, and the means and variances in float64, [N × groups] or [C], constants to autograd.

    y is differentiable in x, w, b and shortcut, also twice; with `known` means and variances it is
    not, by a fused backend.
    """
    _check(x, w, b, groups, shortcut, most)
    tensors = [t for t in (x, w, b, shortcut, *(known or ())) if t is not None]
    settings = (groups, eps, most)
    if _operator.choose(backend, *tensors) != "native":
        return _operator(x, w, b, shortcut, *(known or (None, None)), *settings, backend="torch")
    x, w, b = _as_images(x), w.contiguous(), b.contiguous()
    shortcut = None if shortcut is None else _as_images(shortcut)
    if known is None:
        return _Normalize.apply(x, w, b, shortcut, *settings)
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        raise ValueError("normalize: no gradient with known means; take backend='torch'")
    statistics = (t.to(torch.float64).contiguous() for t in known)
    return torch.ops.c2v_sim.normalize(x, w, b, shortcut, *statistics, *settings)


def _as_images(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def normalize_pays(x: Tensor, *others: Tensor | None) -> bool:
    """Whether the native backend is there and takes these, by shapes and types alone."""
    tensors = [x, *(t for t in others if t is not None)]
    if x.dim() != 4 or not x.numel() or x.shape[1] % CHANNEL_STEP or has_torch_function(tensors):
        return False
    fits = all(t.device.type == "cpu" and t.dtype == torch.float32 for t in tensors)
    return fits and "CPU" in _operator.native_keys


def _check(
    x: Tensor, w: Tensor, b: Tensor, groups: int, shortcut: Tensor | None, most: float
) -> None:
    if x.dim() != 4 or w.shape != (x.shape[1],) or b.shape != w.shape:
        raise ValueError(
            "normalize: x must be [N, C, H, W], w and b [C], got "
            f"{tuple(x.shape)}, {tuple(w.shape)}, {tuple(b.shape)}"
        )
    if groups < 0 or (groups and x.shape[1] % groups):
        raise ValueError(f"normalize: {x.shape[1]} channels are no {groups} groups of one size")
    if shortcut is not None and shortcut.shape != x.shape:
        raise ValueError(
            f"normalize: the shortcut must be like x, {tuple(x.shape)}, got {tuple(shortcut.shape)}"
        )
    if not most >= 0:
        raise ValueError(f"normalize: most must be 0 (no cut) or above, got {most}")


def normalize_torch(
    x: Tensor,
    w: Tensor,
    b: Tensor,
    shortcut: Tensor | None,
    mean: Tensor | None,
    var: Tensor | None,
    groups: int,
    eps: float,
    most: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The definition."""
    n, channels = x.shape[:2]
    parts = x.reshape(n, groups, -1) if groups else x.transpose(0, 1).reshape(channels, -1)
    if mean is None or var is None:
        mean = parts.mean(-1).flatten()
        var = parts.var(-1, correction=0).flatten()
    like = (n, groups, 1) if groups else (channels, 1)
    inverse = torch.rsqrt(var + eps).to(x.dtype)
    normal = (parts - mean.to(x.dtype).view(like)) * inverse.view(like)
    if groups:
        normal = normal.reshape(x.shape)
    else:
        normal = normal.reshape(channels, n, *x.shape[2:]).transpose(0, 1)
    y = normal * w.view(-1, 1, 1) + b.view(-1, 1, 1)
    y = y if shortcut is None else y + shortcut
    if most:
        y = F.relu(y) if most == float("inf") else F.hardtanh(y, 0.0, most)
    return y, mean.detach().double(), var.detach().double()


def normalize_backward_torch(
    grad_y: Tensor,
    x: Tensor,
    y: Tensor,
    w: Tensor,
    mean: Tensor,
    var: Tensor,
    groups: int,
    eps: float,
    most: float,
    need_shortcut: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients for x, w, b and the shortcut (empty where it is not needed, or is grad_y)."""
    passing = torch.where((y > 0) & (y < most), grad_y, 0.0) if most else grad_y
    ones, zeros = torch.ones_like(w), torch.zeros_like(w)
    normal = normalize_torch(x, ones, zeros, None, mean, var, groups, eps, 0.0)[0]
    inner = passing * w.view(-1, 1, 1)
    n = len(x)
    over, inverse = (0, 2, 3), torch.rsqrt(var + eps).to(x.dtype)
    if groups:
        within = (n, groups, -1)
        plain = inner.reshape(within).mean(-1, keepdim=True)
        product = (inner * normal).reshape(within).mean(-1, keepdim=True)
        less = plain + normal.reshape(within) * product
        dx = (inner.reshape(within) - less) * inverse.view(n, groups, 1)
        dx = dx.reshape(x.shape)
    else:
        less = inner.mean(over, True) + normal * (inner * normal).mean(over, True)
        dx = (inner - less) * inverse.view(-1, 1, 1)
    shortcut = passing if need_shortcut and most else x.new_empty(0)
    return dx, (passing * normal).sum(over), passing.sum(over), shortcut


def _images(x: Tensor, count: int) -> Tensor:
    return x.new_empty(count, *x.shape[2:], x.shape[1]).permute(0, 3, 1, 2)


def _fake(x: Tensor, w: Tensor, b: Tensor, *rest) -> tuple[Tensor, Tensor, Tensor]:
    groups = rest[3]
    count = len(x) * groups if groups else x.shape[1]
    mean = x.new_empty(count, dtype=torch.float64)
    return _images(x, len(x)), mean, torch.empty_like(mean)


def _fake_backward(grad_y: Tensor, x: Tensor, *rest) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    most, need_shortcut = rest[-2:]
    dw = x.new_empty(x.shape[1])
    cut = _images(x, len(x) if need_shortcut and most else 0)
    return _images(x, len(x)), dw, torch.empty_like(dw), cut


class _Normalize(torch.autograd.Function):
    """The native operator and its gradient. (torch.library's wiring takes twice the time for its
    calls, which is much of a small layer.)"""

    @staticmethod
    def forward(
        ctx: Context,
        x: Tensor,
        w: Tensor,
        b: Tensor,
        shortcut: Tensor | None,
        groups: int,
        eps: float,
        most: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.settings, ctx.cut = (groups, eps, most), most > 0
        y, mean, var = torch.ops.c2v_sim.normalize(x, w, b, shortcut, None, None, groups, eps, most)
        ctx.mark_non_differentiable(mean, var)
        # The next layer keeps y too; without a cut it is not needed.
        ctx.save_for_backward(x, y if ctx.cut else x, w, b, shortcut, mean, var)
        return y, mean, var

    @staticmethod
    def backward(ctx: Context, grad_y: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, y, w, b, shortcut, mean, var = ctx.saved_tensors
        needed = ctx.needs_input_grad[:4]
        if torch.is_grad_enabled():  # the gradient is to be differentiated again
            again = normalize_torch(x, w, b, shortcut, None, None, *ctx.settings)[0]
            inputs = (x, w, b, shortcut)
            wanted = [t for t, n in zip(inputs, needed, strict=True) if n]
            found = iter(torch.autograd.grad(again, wanted, grad_y, create_graph=True))
            return *(next(found) if n else None for n in needed), None, None, None
        grad_y = grad_y.contiguous(memory_format=torch.channels_last)
        dx, dw, db, cut = torch.ops.c2v_sim.normalize_backward(
            grad_y, x, y, w, mean, var, *ctx.settings, needed[3]
        )
        of_shortcut = (cut if ctx.cut else grad_y) if needed[3] else None
        return dx, dw, db, of_shortcut, None, None, None


_operator = Operator(
    "normalize",
    "(Tensor x, Tensor w, Tensor b, Tensor? shortcut, Tensor? mean, Tensor? var, int groups, "
    "float eps, float most) -> (Tensor, Tensor, Tensor)",
    normalize_torch,
    fake=_fake,
    triton=False,
)
_backward_operator = Operator(
    "normalize_backward",
    "(Tensor grad_y, Tensor x, Tensor y, Tensor w, Tensor mean, Tensor var, int groups, "
    "float eps, float most, bool need_shortcut) -> (Tensor, Tensor, Tensor, Tensor)",
    normalize_backward_torch,
    fake=_fake_backward,
    triton=False,
)
