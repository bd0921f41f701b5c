"""dropout_mask: which elements of a matrix a dropout keeps, from a seed that is on the device.

    kept[r, c] = hash16(seed, first + r, c) >= dropped        -> bool [rows, columns]

k seeds give k masks [k, rows, columns], each as if it were alone: those of k clients.

Whether an element is kept depends on the seed and its place alone, not on what was drawn before: a
backward pass makes the same mask again, in any pieces of the rows, and no number goes over the
host, so that a CUDA graph can record it. `dropped` of 65536 is the probability to be dropped. The
hash is that of fused_ffn.
"""

from torch import Tensor

from c2v_sim.ops._dispatch import Operator
from c2v_sim.ops.fused_ffn import keep_mask


def dropout_mask(
    rows: int,
    columns: int,
    dropped: int,
    seed: Tensor,
    *,
    first: int = 0,
    backend: str | None = None,
) -> Tensor:  # bool [rows, columns], or [k, rows, columns]
    """The mask of the `rows` from `first` on, where `seed` is, an int64 tensor [], or [k]."""
    if seed.dim() > 1:
        raise ValueError(f"dropout_mask: seed must be [] or [k], got {tuple(seed.shape)}")
    if not 0 <= dropped <= 65536:
        raise ValueError(f"dropout_mask: dropped must be in 0..65536, got {dropped}")
    return _operator(seed, first, rows, columns, dropped, backend=backend)


def dropout_mask_torch(seed: Tensor, first: int, rows: int, columns: int, dropped: int) -> Tensor:
    """The definition."""
    return keep_mask(rows, columns, dropped, seed, first)


_operator = Operator(
    "dropout_mask",
    "(Tensor seed, int first, int rows, int columns, int dropped) -> Tensor",
    dropout_mask_torch,
    native=False,
    fake=lambda seed, first, rows, columns, dropped: seed.new_empty(
        *seed.shape, rows, columns
    ).bool(),
)
