"""index_losses: tiles of cosines live in registers only; each program owns the rows it writes.

    sums      [N]    sum_k |cos(a_j, b_k)|  or  sum_{k≠j} exp cos(a_j, b_k)
    gradient  [N, D] of sums of those for a, formed from the same tiles once more

Cosines are products of unit rows times min(1, |a||b| / 1e-8); where that factor is below 1 the
cosine is linear in a, so that pair takes no part in the projection onto the sphere.
projection_orthogonality uses the same kernels, also for products of rows as they are: with lengths
1, and no projection (NORMALISED=False).
"""

# ruff: noqa: E741  (l is the specification's name)

import torch
import triton
import triton.language as tl
from torch import Tensor

ABSOLUTE, EXPONENTIAL = 0, 1
SIM, ORTH, DIV = 1, 2, 4  # bits of `terms`, as in c2v_sim/ops/index_losses.py
ROWS = 16  # rows of a program that goes through rows one by one
TILE = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 16}
GRADIENT_TILE = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 16, "BLOCK_D": 128}
SMALLEST = tl.constexpr(1e-8)


@triton.jit
def _load_rows(x, scale, rows, size, columns, dim):
    """[R, C] elements of x at `rows` × `columns`, times scale [R]; 0 outside."""
    inside = (rows < size)[:, None] & (columns < dim)[None, :]
    at = rows.to(tl.int64)[:, None] * dim + columns[None, :]
    return tl.load(x + at, mask=inside, other=0.0).to(tl.float32) * scale[:, None]


@triton.jit
def _lengths_kernel(x, norm, inverse, size, dim, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    ones = tl.full([ROWS], 1.0, tl.float32)
    squares = tl.zeros([ROWS], dtype=tl.float32)
    for k in range(0, dim, BLOCK):
        part = _load_rows(x, ones, rows, size, k + tl.arange(0, BLOCK), dim)
        squares += tl.sum(part * part, 1)
    # Rounded properly: a GPU's quick root and quotient would be the error of the whole operator.
    length = tl.sqrt_rn(squares)
    # An infinite length would turn finite elements into silent zeros: let it be NaN.
    one_over = tl.where(length == float("inf"), float("nan"), tl.div_rn(ones, length))
    tl.store(norm + rows, length, mask=rows < size)
    tl.store(inverse + rows, tl.where(length == 0.0, 0.0, one_over), mask=rows < size)


@triton.jit
def _similarity_kernel(
    z, l, norm_z, inverse_z, norm_l, inverse_l, loss, grad_z, grad_l, size, dim,
    WITH_GRAD: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < size
    scale_z = tl.load(inverse_z + rows, mask=inside, other=0.0)
    scale_l = tl.load(inverse_l + rows, mask=inside, other=0.0)
    norms = tl.load(norm_z + rows, mask=inside, other=0.0)
    norms *= tl.load(norm_l + rows, mask=inside, other=0.0)
    cosine = tl.zeros([ROWS], dtype=tl.float32)
    for k in range(0, dim, BLOCK):
        columns = k + tl.arange(0, BLOCK)
        unit_z = _load_rows(z, scale_z, rows, size, columns, dim)
        cosine += tl.sum(unit_z * _load_rows(l, scale_l, rows, size, columns, dim), 1)
    short = norms < SMALLEST
    factor = tl.where(short, norms / SMALLEST, 1.0)
    tl.store(loss + rows, 1.0 - cosine * factor, mask=inside)
    if WITH_GRAD:
        along = tl.where(short, 0.0, cosine)[:, None]
        for k in range(0, dim, BLOCK):
            columns = k + tl.arange(0, BLOCK)
            unit_z = _load_rows(z, scale_z, rows, size, columns, dim)
            unit_l = _load_rows(l, scale_l, rows, size, columns, dim)
            at = rows.to(tl.int64)[:, None] * dim + columns[None, :]
            valid = inside[:, None] & (columns < dim)[None, :]
            of_z = scale_z[:, None] * (along * unit_z - factor[:, None] * unit_l) / size
            of_l = scale_l[:, None] * (along * unit_l - factor[:, None] * unit_z) / size
            tl.store(grad_z + at, of_z, mask=valid)
            tl.store(grad_l + at, of_l, mask=valid)


@triton.jit
def _unit_products(
    a, b, rows_a, rows_b, scale_a, scale_b, size_a, size_b, dim,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """[M, N] products of unit rows; a zero for rows outside."""
    products = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for k in range(0, dim, BLOCK_K):
        columns = k + tl.arange(0, BLOCK_K)
        left = _load_rows(a, scale_a, rows_a, size_a, columns, dim)
        right = _load_rows(b, scale_b, rows_b, size_b, columns, dim)
        products = tl.dot(left, tl.trans(right), products, input_precision="ieee")
    return products


@triton.jit
def _sums_kernel(
    a, b, norm_a, inverse_a, norm_b, inverse_b, sums, size_a, size_b, dim,
    KIND: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    scale_a = tl.load(inverse_a + rows, mask=rows < size_a, other=0.0)
    length_a = tl.load(norm_a + rows, mask=rows < size_a, other=0.0)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    for n in range(0, size_b, BLOCK_N):
        others = n + tl.arange(0, BLOCK_N)
        scale_b = tl.load(inverse_b + others, mask=others < size_b, other=0.0)
        norms = length_a[:, None] * tl.load(norm_b + others, mask=others < size_b, other=0.0)[None]
        cosine = _unit_products(
            a, b, rows, others, scale_a, scale_b, size_a, size_b, dim, BLOCK_M, BLOCK_N, BLOCK_K
        ) * tl.where(norms < SMALLEST, norms / SMALLEST, 1.0)
        if KIND == 0:
            value = tl.abs(cosine)
        else:
            pair = (others < size_b)[None, :] & (rows[:, None] != others[None, :])
            value = tl.where(pair, tl.exp(cosine), 0.0)
        total += tl.sum(value, 1)
    tl.store(sums + rows, total, mask=rows < size_a)


@triton.jit
def _gradient_kernel(
    a, b, norm_a, inverse_a, norm_b, inverse_b, sums, grad, size_a, size_b, dim, scale,
    KIND: tl.constexpr, NORMALISED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    scale_a = tl.full([BLOCK_M], 1.0, tl.float32)
    scale_b = tl.full([BLOCK_N], 1.0, tl.float32)
    if NORMALISED:
        scale_a = tl.load(inverse_a + rows, mask=rows < size_a, other=0.0)
        length_a = tl.load(norm_a + rows, mask=rows < size_a, other=0.0)
    g = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    along = tl.zeros([BLOCK_M], dtype=tl.float32)
    if KIND == 1:
        share_a = 1.0 / tl.load(sums + rows, mask=rows < size_a, other=1.0)
    for n in range(0, size_b, BLOCK_N):
        others = n + tl.arange(0, BLOCK_N)
        if NORMALISED:
            scale_b = tl.load(inverse_b + others, mask=others < size_b, other=0.0)
        cosine = _unit_products(
            a, b, rows, others, scale_a, scale_b, size_a, size_b, dim, BLOCK_M, BLOCK_N, BLOCK_K
        )
        factor = 1.0
        if NORMALISED:
            length_b = tl.load(norm_b + others, mask=others < size_b, other=0.0)
            norms = length_a[:, None] * length_b[None, :]
            factor = tl.where(norms < SMALLEST, norms / SMALLEST, 1.0)
        if KIND == 0:
            weight = tl.where(cosine > 0.0, 1.0, tl.where(cosine < 0.0, -1.0, cosine))
        else:
            share_b = 1.0 / tl.load(sums + others, mask=others < size_b, other=1.0)
            pair = (others < size_b)[None, :] & (rows[:, None] != others[None, :])
            weight = tl.exp(cosine * factor) * (share_a[:, None] + share_b[None, :])
            weight = tl.where(pair, weight, 0.0)
        if NORMALISED:
            along += tl.sum(tl.where(norms < SMALLEST, 0.0, weight * cosine), 1)
        right = _load_rows(b, scale_b, others, size_b, columns, dim)
        g = tl.dot(weight * factor, right, g, input_precision="ieee")
    if NORMALISED:
        g -= _load_rows(a, scale_a, rows, size_a, columns, dim) * along[:, None]
    of_a = scale * scale_a[:, None] * g
    at = rows.to(tl.int64)[:, None] * dim + columns[None, :]
    tl.store(grad + at, of_a, mask=(rows < size_a)[:, None] & (columns < dim)[None, :])


def lengths(x: Tensor) -> tuple[Tensor, Tensor]:  # [N, D] contiguous -> [N], [N]
    """The rows' lengths and what they are scaled by: 1/length, 0 for a zero row."""
    size, dim = x.shape
    norm, inverse = (x.new_empty(size, dtype=torch.float32) for _ in range(2))
    _lengths_kernel[(triton.cdiv(size, ROWS),)](
        x, norm, inverse, size, dim, ROWS=ROWS, BLOCK=128, num_warps=4
    )
    return norm, inverse


def as_they_are(x: Tensor) -> tuple[Tensor, Tensor]:  # [N, D] -> [N], [N]
    """In place of lengths() for rows that are not to be scaled."""
    ones = x.new_ones(len(x), dtype=torch.float32)
    return ones, ones


def pair_sums(a: Tensor, b: Tensor, of_a: tuple, of_b: tuple, kind: int) -> Tensor:  # -> [N]
    """Sums over the rows of b for each row of a; of_a and of_b are their lengths()."""
    sums = a.new_empty(len(a), dtype=torch.float32)
    _sums_kernel[(triton.cdiv(len(a), TILE["BLOCK_M"]),)](
        a, b, *of_a, *of_b, sums, len(a), len(b), a.shape[1], KIND=kind, num_warps=4, **TILE
    )
    return sums


def pair_gradient(
    a: Tensor, b: Tensor, of_a: tuple, of_b: tuple, sums: Tensor, kind: int, scale: float,
    *, normalised: bool = True,
) -> Tensor:  # fmt: skip  # -> [N, D]
    """scale × the gradient for a: of |cos|, or of log sum exp cos (`sums` are its sums)."""
    grad = torch.empty_like(a, dtype=torch.float32)
    tile = GRADIENT_TILE
    grid = (triton.cdiv(len(a), tile["BLOCK_M"]), triton.cdiv(a.shape[1], tile["BLOCK_D"]))
    _gradient_kernel[grid](
        a, b, *of_a, *of_b, sums, grad, len(a), len(b), a.shape[1], scale, KIND=kind,
        NORMALISED=normalised, num_warps=8, **tile,
    )  # fmt: skip
    return grad


def _similarity(z: Tensor, l: Tensor, of_z: tuple, of_l: tuple, with_grad: bool) -> list[Tensor]:
    size, dim = z.shape
    loss = z.new_empty(size, dtype=torch.float32)
    grads = [x.new_empty((size if with_grad else 0, dim), dtype=torch.float32) for x in (z, l)]
    _similarity_kernel[(triton.cdiv(size, ROWS),)](
        z, l, *of_z, *of_l, loss, *grads, size, dim, WITH_GRAD=with_grad, ROWS=ROWS, BLOCK=128,
        num_warps=4,
    )  # fmt: skip
    return [loss.mean(), *grads]


def index_losses(
    z: Tensor, u: Tensor, l: Tensor, terms: int, with_grad: bool
) -> tuple[Tensor, ...]:  # 3 × [B, D] -> [3], sim_z, sim_l, orth_z, orth_u, div_u
    """Launch on the current stream; gradients that are not wanted are [0, D]."""
    size, dim = z.shape
    losses = z.new_zeros(3, dtype=torch.float32)
    none = z.new_empty((0, dim), dtype=torch.float32)
    grads = [none.clone() for _ in range(5)]
    if size == 0:
        return losses, *grads
    with torch.cuda.device_of(z):
        z, u, l = z.contiguous(), u.contiguous(), l.contiguous()
        of_z, of_u, of_l = lengths(z), lengths(u), lengths(l)
        if terms & SIM:
            losses[0], grads[0], grads[1] = _similarity(z, l, of_z, of_l, with_grad)
        if terms & ORTH:
            sums = pair_sums(z, u, of_z, of_u, ABSOLUTE)
            losses[1] = sums.mean() / size
            if with_grad:
                scale = 1 / size**2
                grads[2] = pair_gradient(z, u, of_z, of_u, sums, ABSOLUTE, scale)
                grads[3] = pair_gradient(u, z, of_u, of_z, sums, ABSOLUTE, scale)
        if terms & DIV and size > 1:
            sums = pair_sums(u, u, of_u, of_u, EXPONENTIAL)
            losses[2] = sums.log().mean()
            if with_grad:
                grads[4] = pair_gradient(u, u, of_u, of_u, sums, EXPONENTIAL, 1 / size)
        elif terms & DIV and with_grad:
            grads[4] = torch.zeros_like(u, dtype=torch.float32)
    return losses, *grads


_LENGTHS = {"norm_a": "*fp32", "inverse_a": "*fp32", "norm_b": "*fp32", "inverse_b": "*fp32"}
_SIZES = {"size_a": "i32", "size_b": "i32", "dim": "i32"}


def aot_pairs(kind: int, storage: str, *, normalised: bool = True) -> list[tuple]:
    """The two pair kernels for the ahead-of-time check: kernel, types, constants, warps."""
    operands = {"a": storage, "b": storage, **_LENGTHS, "sums": "*fp32"}
    return [
        (_sums_kernel, {**operands, **_SIZES}, {"KIND": kind, **TILE}, 4),
        (
            _gradient_kernel,
            {**operands, "grad": "*fp32", **_SIZES, "scale": "fp32"},
            {"KIND": kind, "NORMALISED": normalised, **GRADIENT_TILE},
            8,
        ),
    ]


AOT = [
    (
        _lengths_kernel,
        {"x": "*fp32", "norm": "*fp32", "inverse": "*fp32", "size": "i32", "dim": "i32"},
        {"ROWS": ROWS, "BLOCK": 128},
        4,
    ),
    (
        _similarity_kernel,
        {"z": "*fp32", "l": "*fp32", "norm_z": "*fp32", "inverse_z": "*fp32", "norm_l": "*fp32",
         "inverse_l": "*fp32", "loss": "*fp32", "grad_z": "*fp32", "grad_l": "*fp32",
         "size": "i32", "dim": "i32"},
        {"WITH_GRAD": True, "ROWS": ROWS, "BLOCK": 128},
        4,
    ),
    *aot_pairs(ABSOLUTE, "*fp32"),
    *aot_pairs(EXPONENTIAL, "*fp32"),
]  # fmt: skip
