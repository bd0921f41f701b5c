"""sgd_step: torch.optim.SGD over the rows of an arena; formula in c2v_sim/ops/sgd_step.py.

One program per (row, block). Clipping takes one more read: every block writes its squared norm
(float64), and the blocks of a row are added in a fixed order by torch.sum.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
CLIP_EPSILON = tl.constexpr(1e-6)


@triton.jit
def _objective_gradient(
    p, grads, linear, anchor, proximal, offset, columns, inside, linear_stride, anchor_stride, row,
    LINEAR: tl.constexpr, ANCHOR: tl.constexpr,
):  # fmt: skip
    d = tl.load(grads + offset, mask=inside, other=0.0)
    if LINEAR:
        d += tl.load(linear + row * linear_stride + columns, mask=inside, other=0.0)
    if ANCHOR:
        d += proximal * (p - tl.load(anchor + row * anchor_stride + columns, inside, other=0.0))
    return d


@triton.jit
def _sgd_step_norm_kernel(
    parameters, grads, row_options, linear, anchor, partial, size,
    parameters_stride, grads_stride, option_stride, linear_stride, anchor_stride,
    LINEAR: tl.constexpr, ANCHOR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    block, row = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    columns = block * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    proximal = tl.load(row_options + row * option_stride + 3)
    p = tl.zeros([BLOCK], tl.float32)
    if ANCHOR:
        p = tl.load(parameters + row * parameters_stride + columns, mask=inside, other=0.0)
    d = _objective_gradient(
        p, grads, linear, anchor, proximal, row * grads_stride + columns, columns, inside,
        linear_stride, anchor_stride, row, LINEAR, ANCHOR,
    )  # fmt: skip
    d64 = d.to(tl.float64)
    tl.store(partial + row * tl.num_programs(0) + block, tl.sum(d64 * d64, axis=0))


@triton.jit
def _sgd_step_kernel(
    parameters, grads, buffer, row_options, linear, anchor, squared_norm, size,
    parameters_stride, grads_stride, buffer_stride, option_stride, linear_stride, anchor_stride,
    BUFFER: tl.constexpr, LINEAR: tl.constexpr, ANCHOR: tl.constexpr, CLIP: tl.constexpr,
    ZERO: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    # int64 before multiplying: an arena exceeds 2**31 elements.
    block, row = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    columns = block * BLOCK + tl.arange(0, BLOCK)
    inside = columns < size
    option = row_options + row * option_stride
    lr, weight_decay, momentum = tl.load(option), tl.load(option + 1), tl.load(option + 2)
    proximal = tl.load(option + 3)
    p_at, g_at = parameters + row * parameters_stride + columns, row * grads_stride + columns
    p = tl.load(p_at, mask=inside, other=0.0)
    d = _objective_gradient(
        p, grads, linear, anchor, proximal, g_at, columns, inside,
        linear_stride, anchor_stride, row, LINEAR, ANCHOR,
    )  # fmt: skip
    if CLIP:
        norm = tl.sqrt(tl.load(squared_norm + row)).to(tl.float32)
        scale = tl.load(option + 4) / (norm + CLIP_EPSILON)
        d *= tl.where(scale > 1.0, 1.0, scale)  # NaN stays NaN
    d += weight_decay * p
    if BUFFER:
        b_at = buffer + row * buffer_stride + columns
        d += momentum * tl.load(b_at, mask=inside, other=0.0)
        tl.store(b_at, d, mask=inside)
    tl.store(p_at, p - lr * d, mask=inside)
    if ZERO:
        tl.store(grads + g_at, tl.zeros([BLOCK], tl.float32), mask=inside)


def sgd_step(
    params: Tensor,  # [K, P], as grads, momentum_buffer, linear and anchor
    grads: Tensor,
    momentum_buffer: Tensor | None,
    options: Tensor,  # [K, 5]
    linear: Tensor | None,
    anchor: Tensor | None,
    clip: bool,
    zero_grads: bool,
) -> None:
    """Launch on the current stream of the device of params."""
    rows, size = params.shape
    if rows == 0 or size == 0:
        return
    # Absent tensors are replaced by one that is there; the constants keep them from being read.
    lin, anc = (params if t is None else t for t in (linear, anchor))
    buffer = params if momentum_buffer is None else momentum_buffer
    has = {"LINEAR": linear is not None, "ANCHOR": anchor is not None, "BLOCK": BLOCK}
    grid = (triton.cdiv(size, BLOCK), rows)
    squared_norm = options
    with torch.cuda.device_of(params):
        if clip:
            partial = torch.empty(rows, grid[0], dtype=torch.float64, device=params.device)
            _sgd_step_norm_kernel[grid](
                params, grads, options, lin, anc, partial, size, params.stride(0),
                grads.stride(0), options.stride(0), lin.stride(0), anc.stride(0), **has,
                num_warps=4,
            )  # fmt: skip
            squared_norm = partial.sum(dim=1)
        _sgd_step_kernel[grid](
            params, grads, buffer, options, lin, anc, squared_norm, size, params.stride(0),
            grads.stride(0), buffer.stride(0), options.stride(0), lin.stride(0), anc.stride(0),
            **has, BUFFER=momentum_buffer is not None, CLIP=clip, ZERO=zero_grads, num_warps=4,
        )  # fmt: skip


# What the ahead-of-time check compiles: FedDyn with momentum, and the plain step.
_POINTERS = {"parameters": "*fp32", "grads": "*fp32", "row_options": "*fp32", "linear": "*fp32",
             "anchor": "*fp32", "size": "i64", "parameters_stride": "i64", "grads_stride": "i64",
             "option_stride": "i64", "linear_stride": "i64", "anchor_stride": "i64"}  # fmt: skip
_STEP = _POINTERS | {"buffer": "*fp32", "buffer_stride": "i64", "squared_norm": "*fp64"}
_ALL = {"BUFFER": True, "LINEAR": True, "ANCHOR": True, "CLIP": True, "ZERO": True}
AOT = [
    (
        _sgd_step_norm_kernel,
        _POINTERS | {"partial": "*fp64"},
        {"LINEAR": True, "ANCHOR": True, "BLOCK": BLOCK},
        4,
    ),
    (_sgd_step_kernel, _STEP, _ALL | {"BLOCK": BLOCK}, 4),
    (_sgd_step_kernel, _STEP, dict.fromkeys(_ALL, False) | {"BLOCK": BLOCK}, 4),
]
