"""weighted_sum: out[p] = sum_k weights[k] * arena[k, p]; one program per block of columns."""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _weighted_sum_kernel(arena, weights, out, rows, size, row_stride, BLOCK: tl.constexpr):
    # int64 before multiplying: an arena exceeds 2**31 elements.
    columns = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for k in range(rows):
        weight = tl.load(weights + k)
        offset = tl.cast(k, tl.int64) * row_stride
        row = tl.load(arena + offset + columns, mask=inside, other=0.0)
        total += weight * row.to(tl.float32)
    tl.store(out + columns, total, mask=inside)


def weighted_sum(arena: Tensor, weights: Tensor, out: Tensor) -> None:  # [K, P], [K], [P]
    """Launch on the current stream; `out` is float32 and contiguous."""
    if not (out.is_contiguous() and out.dtype.is_floating_point and out.dtype.itemsize == 4):
        raise ValueError("weighted_sum: out must be float32 and contiguous")
    rows, size = arena.shape
    if size == 0:
        return
    arena = arena if arena.stride(1) == 1 else arena.contiguous()
    weights = weights.float().contiguous()
    grid = (triton.cdiv(size, BLOCK),)
    _weighted_sum_kernel[grid](
        arena, weights, out, rows, size, arena.stride(0), BLOCK=BLOCK, num_warps=4
    )


# What the ahead-of-time check compiles: kernel, argument types, constants, warps.
AOT = [
    (
        _weighted_sum_kernel,
        {"arena": "*fp32", "weights": "*fp32", "out": "*fp32", "rows": "i32", "size": "i64",
         "row_stride": "i64"},
        {"BLOCK": BLOCK},
        4,
    ),
]  # fmt: skip
