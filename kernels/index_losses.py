"""index_losses: products by the library of the device, and one pass over them a row a program.

    sums      [N]    sum_k |cos(a_j, b_k)|  or  sum_{k≠j} exp cos(a_j, b_k)
    gradient  [N, D] of sums of those for a: what a product is weighed by takes its place, and the
                     weights times b are one more product of matrices

Cosines are products of unit rows times min(1, |a||b| / 1e-8); where that factor is below 1 the
cosine is linear in a, so that pair takes no part in the projection onto the sphere.

A batch's own products are a small matrix, and few programs would make them: the library cuts them
better. Of those with a large index some columns are made at a time, and added in their order.
projection_orthogonality uses the same, also for rows as they are (NORMALISED=False).
"""

# ruff: noqa: E741  (l is the specification's name)

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

ABSOLUTE, EXPONENTIAL = 0, 1
SIM, ORTH, DIV = 1, 2, 4  # bits of `terms`, as in c2v_sim/ops/index_losses.py
MANY, TOGETHER = 864, 4  # from so many rows on a program takes some together, else one
COLUMNS = 1024  # of the products that a program reads at once
PRODUCTS = 1 << 22  # held at once, 16 MB: they stay in the second-level cache of an A100
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
def _tile_of(products, norm_a, norm_b, row, columns, size, NORMALISED: tl.constexpr):
    """A row's products at `columns`, what a short pair is multiplied by, and which are short."""
    inside = columns < size
    product = tl.load(products + row * size + columns, mask=inside, other=0.0)
    factor = tl.full(columns.shape, 1.0, tl.float32)
    if NORMALISED:
        norms = tl.load(norm_a + row) * tl.load(norm_b + columns, mask=inside, other=0.0)
        factor = tl.where(norms < SMALLEST, norms / SMALLEST, 1.0)
    return product, factor, inside


@triton.jit
def _sums_kernel(
    products, norm_a, norm_b, sums, size, first,
    KIND: tl.constexpr, NORMALISED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for begin in range(0, size, BLOCK):
        columns = begin + tl.arange(0, BLOCK)
        product, factor, inside = _tile_of(
            products, norm_a, norm_b, row, columns, size, NORMALISED
        )  # fmt: skip
        if KIND == 0:
            total += tl.abs(product * factor)
        else:
            pair = inside & (first + columns != row)
            total += tl.where(pair, tl.exp(product * factor), 0.0)
    tl.store(sums + row, tl.load(sums + row) + tl.sum(total, 0))


@triton.jit
def _weights_kernel(
    products, norm_a, norm_b, sums, sums_b, along, size, first, scale,
    KIND: tl.constexpr, NORMALISED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    absolute = tl.zeros([BLOCK], dtype=tl.float32)
    lengthwise = tl.zeros([BLOCK], dtype=tl.float32)
    for begin in range(0, size, BLOCK):
        columns = begin + tl.arange(0, BLOCK)
        product, factor, inside = _tile_of(
            products, norm_a, norm_b, row, columns, size, NORMALISED
        )  # fmt: skip
        if KIND == 0:
            weight = tl.where(product > 0.0, 1.0, tl.where(product < 0.0, -1.0, product))
            absolute += tl.abs(product * factor)
        else:
            share = 1.0 / tl.load(sums + row) + 1.0 / tl.load(sums_b + columns, inside, other=1.0)
            pair = inside & (first + columns != row)
            weight = tl.where(pair, tl.exp(product * factor) * share, 0.0)
        weight *= scale
        lengthwise += tl.where(factor < 1.0, 0.0, weight * product)
        tl.store(products + row * size + columns, weight * factor, mask=inside)
    if KIND == 0:
        tl.store(sums + row, tl.load(sums + row) + tl.sum(absolute, 0))
    if NORMALISED:
        tl.store(along + row, tl.load(along + row) + tl.sum(lengthwise, 0))


def _rows_of_a_program(size: int) -> int:
    """A batch of 128 rows is 128 programs: one for each multiprocessor of an A100, and more."""
    return TOGETHER if size >= MANY else 1


def lengths(x: Tensor) -> tuple[Tensor, Tensor]:  # [N, D] contiguous -> [N], [N]
    """The rows' lengths and what they are scaled by: 1/length, 0 for a zero row."""
    size, dim = x.shape
    norm, inverse = (x.new_empty(size, dtype=torch.float32) for _ in range(2))
    rows = _rows_of_a_program(size)
    _lengths_kernel[(triton.cdiv(size, rows),)](
        x, norm, inverse, size, dim, ROWS=rows, BLOCK=512, num_warps=4
    )
    return norm, inverse


@dataclass(frozen=True)
class Rows:
    """Rows as they enter products, float32 [N, D], and what made them so."""

    unit: Tensor  # scaled to length 1, or as they are
    norm: Tensor  # [N], their lengths before that
    inverse: Tensor  # [N], what they were multiplied by
    normalised: bool


def unit_rows(x: Tensor) -> Rows:  # [N, D] contiguous
    norm, inverse = lengths(x)
    return Rows(x.to(torch.float32) * inverse[:, None], norm, inverse, normalised=True)


def as_they_are(x: Tensor) -> Rows:  # [N, D]
    rows = x.to(torch.float32)
    return Rows(rows, rows, rows, normalised=False)  # lengths that no kernel reads


def _chunks(a: Rows, b: Rows) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    """Columns of the products of a and b, at most PRODUCTS elements at a time: the first, the rows
    of b and their lengths, the products [N, C]."""
    columns = max(1, PRODUCTS // len(a.unit))
    for first in range(0, len(b.unit), columns):
        rows = b.unit[first : first + columns]
        yield first, rows, b.norm[first : first + columns], a.unit @ rows.T


def pair_sums(a: Rows, b: Rows, kind: int) -> Tensor:  # -> [N]
    """Sums over the rows of b for each row of a."""
    sums = a.unit.new_zeros(len(a.unit))
    for first, rows, norm, products in _chunks(a, b):
        _sums_kernel[(len(sums),)](
            products, a.norm, norm, sums, len(rows), first, KIND=kind,
            NORMALISED=a.normalised, BLOCK=COLUMNS, num_warps=4,
        )  # fmt: skip
    return sums


def pair_gradient(
    a: Rows, b: Rows, kind: int, scale: float, sums: Tensor | None = None
) -> tuple[Tensor, Tensor]:  # -> [N], [N, D]
    """The sums, and scale × the gradient for a: of |cos|, or of log sum exp cos.

    The latter needs the sums of all rows beforehand, the former makes them by the way.
    """
    sums = a.unit.new_zeros(len(a.unit)) if sums is None else sums
    along, grad = torch.zeros_like(sums), torch.zeros_like(a.unit)
    for first, rows, norm, products in _chunks(a, b):
        _weights_kernel[(len(along),)](
            products, a.norm, norm, sums, sums[first:], along, len(rows), first, scale, KIND=kind,
            NORMALISED=a.normalised, BLOCK=COLUMNS, num_warps=4,
        )  # fmt: skip
        grad.addmm_(products, rows)
    if a.normalised:  # what lies along the row does not turn it
        grad.addcmul_(a.unit, along[:, None], value=-1.0).mul_(a.inverse[:, None])
    return sums, grad


def _similarity(z: Tensor, l: Tensor, of_z: tuple, of_l: tuple, with_grad: bool) -> list[Tensor]:
    size, dim = z.shape
    loss = z.new_empty(size, dtype=torch.float32)
    grads = [x.new_empty((size if with_grad else 0, dim), dtype=torch.float32) for x in (z, l)]
    rows = _rows_of_a_program(size)
    _similarity_kernel[(triton.cdiv(size, rows),)](
        z, l, *of_z, *of_l, loss, *grads, size, dim, WITH_GRAD=with_grad, ROWS=rows, BLOCK=512,
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
        if terms & SIM:
            of_z, of_l = lengths(z), lengths(l)
            losses[0], grads[0], grads[1] = _similarity(z, l, of_z, of_l, with_grad)
        if terms & (ORTH | DIV):
            unit_u = unit_rows(u)
        if terms & ORTH:
            unit_z, scale = unit_rows(z), 1 / size**2
            if with_grad:
                sums, grads[2] = pair_gradient(unit_z, unit_u, ABSOLUTE, scale)
                _, grads[3] = pair_gradient(unit_u, unit_z, ABSOLUTE, scale)
            else:
                sums = pair_sums(unit_z, unit_u, ABSOLUTE)
            losses[1] = sums.mean() / size
        if terms & DIV and size > 1:
            sums = pair_sums(unit_u, unit_u, EXPONENTIAL)
            losses[2] = sums.log().mean()
            if with_grad:
                _, grads[4] = pair_gradient(unit_u, unit_u, EXPONENTIAL, 1 / size, sums)
        elif terms & DIV and with_grad:
            grads[4] = torch.zeros_like(u, dtype=torch.float32)
    return losses, *grads


_PAIRS = {"products": "*fp32", "norm_a": "*fp32", "norm_b": "*fp32", "sums": "*fp32", "size": "i32",
          "first": "i32"}  # fmt: skip


def aot_pairs(kind: int, *, normalised: bool = True) -> list[tuple]:
    """The two pair kernels for the ahead-of-time check: kernel, types, constants, warps."""
    constants = {"KIND": kind, "NORMALISED": normalised, "BLOCK": COLUMNS}
    weights = {"sums_b": "*fp32", "along": "*fp32", "scale": "fp32"}
    return [(_sums_kernel, _PAIRS, constants, 4), (_weights_kernel, _PAIRS | weights, constants, 4)]


AOT = [
    (
        _lengths_kernel,
        {"x": storage, "norm": "*fp32", "inverse": "*fp32", "size": "i32", "dim": "i32"},
        {"ROWS": rows, "BLOCK": 512},
        4,
    )
    for storage, rows in (("*fp32", 1), ("*bf16", TOGETHER))
]
AOT += [
    (
        _similarity_kernel,
        {"z": "*fp32", "l": "*fp32", "norm_z": "*fp32", "inverse_z": "*fp32", "norm_l": "*fp32",
         "inverse_l": "*fp32", "loss": "*fp32", "grad_z": "*fp32", "grad_l": "*fp32",
         "size": "i32", "dim": "i32"},
        {"WITH_GRAD": True, "ROWS": 1, "BLOCK": 512},
        4,
    ),
    *aot_pairs(ABSOLUTE),
    *aot_pairs(EXPONENTIAL),
]  # fmt: skip
