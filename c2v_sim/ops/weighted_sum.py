"""weighted_sum: the aggregation of a cohort, one read of the parameter arena.

    out[p] = sum_k weights[k] * arena[k, p]        [K, P], [K] -> [P]

Accumulates in float32 whatever the arena stores; the result is float32. Row k is added before
row k + 1, so the bits do not depend on the number of threads.
"""

import torch
from torch import Tensor

from c2v_sim.ops._dispatch import STORAGE, Operator


def weighted_sum(
    arena: Tensor, weights: Tensor, out: Tensor | None = None, *, backend: str | None = None
) -> Tensor:  # [K, P], [K] -> [P]
    """Sum the rows of `arena` [K, P] with `weights` [K]; written into `out` [P] when given.

    `out` may not overlap the arena. Not differentiable: aggregation happens outside autograd.
    """
    if arena.dim() != 2:
        raise ValueError(f"weighted_sum: arena must be [K, P], got {tuple(arena.shape)}")
    rows, size = arena.shape
    if weights.shape != (rows,):
        raise ValueError(f"weighted_sum: weights must be [{rows}], got {tuple(weights.shape)}")
    if out is None:
        out = arena.new_empty(size, dtype=torch.promote_types(arena.dtype, torch.float32))
    elif out.shape != (size,):
        raise ValueError(f"weighted_sum: out must be [{size}], got {tuple(out.shape)}")
    with torch.no_grad():
        _operator(arena, weights, out, backend=backend)
    return out


def add_weighted(row: Tensor, weight: float, out: Tensor, *, backend: str | None = None) -> None:
    """out += weight * row [P]: row by row, the native backend gives the bits of `weighted_sum`."""
    with torch.no_grad():
        _add_operator(row, weight, out, backend=backend)


def add_weighted_torch(row: Tensor, weight: float, out: Tensor) -> None:
    """The definition."""
    out.add_(row, alpha=weight)


def weighted_sum_torch(arena: Tensor, weights: Tensor, out: Tensor) -> None:
    """The definition."""
    out.copy_(weights.to(out.dtype) @ arena.to(out.dtype))


_operator = Operator(
    "weighted_sum",
    "(Tensor arena, Tensor weights, Tensor(a!) out) -> ()",
    weighted_sum_torch,
    fake=lambda arena, weights, out: None,
    dtypes=STORAGE,
)
_add_operator = Operator(
    "weighted_sum_add",
    "(Tensor row, float weight, Tensor(a!) out) -> ()",
    add_weighted_torch,
    fake=lambda row, weight, out: None,
    triton=False,
)
