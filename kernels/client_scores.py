"""client_scores: s = (F F^T + G G^T) omega / 2 with unit rows; formula in
c2v_sim/ops/client_scores.py.

Three launches an index: omega_j / |row_j| for the cohort, the cohort's weighted sum (the
direction) in chunks that are added in a fixed order, and one read of the index that gives each
row's dot product with the direction and its length. Sums are float32, repeated in float64 for
rows whose squares leave float32's range.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS, BLOCK = 8, 256  # a program's tile of the index
CHUNK = 64  # cohort rows of one partial sum


@triton.jit
def _sums(
    index, offsets, inside, direction, size,
    DOT: tl.constexpr, TYPE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    dot, squared = tl.zeros([ROWS, BLOCK], TYPE), tl.zeros([ROWS, BLOCK], TYPE)
    for start in range(0, size, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        mask = inside[:, None] & (columns < size)[None, :]
        x = tl.load(index + offsets[:, None] + columns[None, :], mask=mask, other=0.0).to(TYPE)
        squared += x * x
        if DOT:
            d = tl.load(direction + columns, mask=columns < size, other=0.0).to(TYPE)
            dot += x * d[None, :]
    return tl.sum(dot, axis=1).to(tl.float64), tl.sum(squared, axis=1).to(tl.float64)


@triton.jit
def _products(
    index, offsets, inside, direction, size,
    DOT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    dot, squared = _sums(
        index, offsets, inside, direction, size, DOT, tl.float32, ROWS, BLOCK
    )  # fmt: skip
    good = (squared > 1e-25) & (squared < 1e30)
    if tl.max(tl.where(inside & (good == 0), 1, 0), axis=0) > 0:
        dot, squared = _sums(
            index, offsets, inside, direction, size, DOT, tl.float64, ROWS, BLOCK
        )  # fmt: skip
    return dot, squared


@triton.jit
def _cosine(
    index, offsets, inside, direction, size, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    dot, squared = _products(index, offsets, inside, direction, size, True, ROWS, BLOCK)
    return dot / tl.sqrt(tl.where(squared == 0.0, 1.0, squared))  # dot is 0 or NaN for a zero row


@triton.jit
def _coefficients_kernel(
    index, cohort, omega, coefficients, members, size, stride,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = member < members
    offsets = tl.load(cohort + member, mask=inside, other=0) * stride
    _, squared = _products(index, offsets, inside, index, size, False, ROWS, BLOCK)
    weight = tl.load(omega + member, mask=inside, other=0.0).to(tl.float64)
    weight = tl.where(squared == 0.0, 0.0, weight / tl.sqrt(tl.where(squared == 0, 1.0, squared)))
    tl.store(coefficients + member, weight, mask=inside)


@triton.jit
def _direction_kernel(
    index, cohort, coefficients, partial, members, size, stride,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for j in range(CHUNK):
        member = chunk * CHUNK + j
        there = member < members
        row = tl.load(cohort + member, mask=there, other=0)
        weight = tl.load(coefficients + member, mask=there, other=0.0)
        # not `there & …`: Triton 3.9 interprets a scalar truth beside a block of them wrongly
        inside = columns < tl.where(there, size, 0)
        x = tl.load(index + row * stride + columns, mask=inside, other=0.0)
        # float64: the coefficient of a tiny row is beyond float32
        total += (weight * x.to(tl.float64)).to(tl.float32)
    tl.store(partial + chunk * size + columns, total, mask=columns < size)


@triton.jit
def _client_scores_kernel(
    features, labels, along_features, along_labels, scores, clients,
    feature_size, label_size, feature_stride, label_stride,
    BOTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < clients
    score = _cosine(
        features, row * feature_stride, inside, along_features, feature_size, ROWS, BLOCK
    )  # fmt: skip
    if BOTH:
        score += _cosine(
            labels, row * label_stride, inside, along_labels, label_size, ROWS, BLOCK
        )  # fmt: skip
        score *= 0.5
    tl.store(scores + row, score.to(tl.float32), mask=inside)


def _direction(index: Tensor, cohort: Tensor, omega: Tensor) -> Tensor:  # [M, D] -> [D]
    members, size, stride = len(cohort), index.shape[1], index.stride(0)
    coefficients = omega.new_empty(members, dtype=torch.float64)
    chunks = triton.cdiv(members, CHUNK)
    partial = omega.new_empty(chunks, size)
    _coefficients_kernel[(triton.cdiv(members, ROWS),)](
        index, cohort, omega, coefficients, members, size, stride,
        ROWS=ROWS, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
    if size > 0:
        _direction_kernel[(triton.cdiv(size, BLOCK), chunks)](
            index, cohort, coefficients, partial, members, size, stride,
            CHUNK=CHUNK, BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
    return partial.sum(dim=0)


def client_scores(
    feature_index: Tensor, label_index: Tensor | None, cohort: Tensor, omega: Tensor
) -> Tensor:  # [M, D_f], [M, D_l], [k], [k] -> [M]
    """Launch on the current stream of the device of the index."""
    f, l = (  # noqa: E741 (label)
        t if t.stride(1) == 1 else t.contiguous()
        for t in (feature_index, feature_index if label_index is None else label_index)
    )
    cohort, omega = cohort.contiguous(), omega.contiguous()
    scores = omega.new_empty(len(f))
    if len(f) == 0:
        return scores
    with torch.cuda.device_of(f):
        along_f = _direction(f, cohort, omega)
        along_l = along_f if label_index is None else _direction(l, cohort, omega)
        _client_scores_kernel[(triton.cdiv(len(f), ROWS),)](
            f, l, along_f, along_l, scores, len(f), f.shape[1], l.shape[1], f.stride(0),
            l.stride(0), BOTH=label_index is not None, ROWS=ROWS, BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
    return scores


# What the ahead-of-time check compiles: kernel, argument types, constants, warps.
_COHORT = {"cohort": "*i64", "members": "i32", "size": "i32", "stride": "i64"}
_TILE = {"ROWS": ROWS, "BLOCK": BLOCK}
AOT = []
for _storage in ("*fp32", "*bf16"):
    _SCORES = {"features": _storage, "labels": _storage, "along_features": "*fp32",
               "along_labels": "*fp32", "scores": "*fp32", "clients": "i32", "feature_size": "i32",
               "label_size": "i32", "feature_stride": "i64", "label_stride": "i64"}  # fmt: skip
    AOT += [
        (
            _coefficients_kernel,
            _COHORT | {"index": _storage, "omega": "*fp32", "coefficients": "*fp64"},
            _TILE,
            4,
        ),
        (
            _direction_kernel,
            _COHORT | {"index": _storage, "coefficients": "*fp64", "partial": "*fp32"},
            {"CHUNK": CHUNK, "BLOCK": BLOCK},
            4,
        ),
        (_client_scores_kernel, _SCORES, _TILE | {"BOTH": True}, 4),
    ]
