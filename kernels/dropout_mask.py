"""dropout_mask: bool [rows, columns] from a seed on the device; the bits are those of fused_ffn.

The third axis of the grid is the client, who has a seed and a mask.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from c2v_sim.kernels.fused_ffn import _keep

ROWS, COLUMNS = 8, 128  # of a program


@triton.jit
def _mask_kernel(
    seed, mask, first, rows, columns, dropped, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    client = tl.program_id(2).to(tl.int64)
    kept = _keep(seed + client, first + row, column, dropped)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    mask += client * rows * columns
    tl.store(mask + row[:, None] * columns + column[None, :], kept.to(tl.int8), mask=inside)


def dropout_mask(seed: Tensor, first: int, rows: int, columns: int, dropped: int) -> Tensor:
    """Launch on the current stream."""
    mask = torch.empty(*seed.shape, rows, columns, dtype=torch.bool, device=seed.device)
    if mask.numel():
        grid = (triton.cdiv(rows, ROWS), triton.cdiv(columns, COLUMNS), seed.numel())
        with torch.cuda.device_of(seed):
            _mask_kernel[grid](
                seed, mask.view(torch.int8), first, rows, columns, dropped, ROWS=ROWS,
                COLUMNS=COLUMNS, num_warps=4,
            )  # fmt: skip
    return mask


# What the ahead-of-time check compiles: kernel, argument types, constants, warps.
AOT = [
    (
        _mask_kernel,
        {"seed": "*i64", "mask": "*i8", "first": "i64", "rows": "i32", "columns": "i32",
         "dropped": "i32"},
        {"ROWS": ROWS, "COLUMNS": COLUMNS},
        4,
    ),
]  # fmt: skip
