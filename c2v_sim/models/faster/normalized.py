"""Group and batch norms of images with what follows them: a shortcut that is added, ReLU."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from c2v_sim.models.linear_chain import has_hooks
from c2v_sim.ops.layers.normalize import normalize, normalize_pays

RELU = float("inf")  # where the result is cut: at 0 and here


def activated(norm: nn.Module, x: Tensor, *, shortcut: Tensor | None = None, most: float) -> Tensor:
    """norm(x), plus the shortcut, cut at 0 and `most`; in one operator where the norm has it."""
    own = vars(norm).get("forward")  # as layers.py gives it, which takes more than x
    if getattr(own, "__func__", None) is normalized and not has_hooks(norm):
        return norm(x, shortcut, most)
    return _finished(norm(x), shortcut, most)


def _finished(y: Tensor, shortcut: Tensor | None, most: float) -> Tensor:
    """What follows a norm, worked into its output, which is nobody else's: less memory."""
    y = y if shortcut is None else y.add_(shortcut)
    return y if not most else F.relu_(y) if most == RELU else F.hardtanh_(y, 0.0, most)


def can_normalize(module: nn.Module) -> bool:
    """Whether `normalized` can be its forward."""
    if type(module) is nn.GroupNorm:
        return module.affine
    if type(module) is nn.BatchNorm2d:
        return module.affine and module.track_running_stats and module.momentum is not None
    return False


def normalized(
    norm: nn.GroupNorm | nn.BatchNorm2d,
    x: Tensor,
    shortcut: Tensor | None = None,
    most: float = 0.0,
) -> Tensor:
    """What the forward of nn.GroupNorm and nn.BatchNorm2d does, and what `activated` adds."""
    batch = norm if isinstance(norm, nn.BatchNorm2d) else None
    known = _averages(batch) if batch and not batch.training else None
    tensors = (x, norm.weight, norm.bias, shortcut)
    learns = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    few = batch and x.numel() == x.shape[1]  # in training torch refuses that
    if not normalize_pays(*tensors) or few or (known and learns):
        return _finished(type(norm).forward(norm, x), shortcut, most)  # type: ignore[arg-type]
    y, mean, var = normalize(
        x,
        norm.weight,
        norm.bias,
        groups=norm.num_groups if isinstance(norm, nn.GroupNorm) else 0,
        eps=norm.eps,
        known=known,
        shortcut=shortcut,
        most=most,
        backend="native",
    )
    if batch and batch.training:
        _count(batch, mean, var, x.numel() // x.shape[1])
    return y


def _averages(norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    return norm.running_mean, norm.running_var  # type: ignore[return-value]  # can_normalize


@torch.no_grad()
def _count(norm: nn.BatchNorm2d, mean: Tensor, var: Tensor, count: int) -> None:
    """Another batch in the running averages, whose variance is that of all numbers but one."""
    norm.num_batches_tracked.add_(1)  # type: ignore[union-attr]  # can_normalize
    for average, of_batch in zip(_averages(norm), (mean, var * count / (count - 1)), strict=True):
        average.lerp_(of_batch.to(average.dtype), norm.momentum)  # type: ignore[arg-type]
