"""index_losses: products by the library of the device, and one pass over them a row a program.

    sums      [N]    sum_k |cos(a_j, b_k)|  or  sum_{k≠j} exp cos(a_j, b_k)
    gradient  [N, D] of sums of those for a: what a product is weighed by takes its place, and the
                     weights times b are one more product of matrices

Cosines are products of unit rows times min(1, |a||b| / 1e-8); where that factor is below 1 the
cosine is linear in a, so that pair takes no part in the projection onto the sphere.

A batch's own products are a small matrix, and few programs would make them: the library cuts them
better. Of those with a large index some columns are made at a time, and added in their order.
projection_orthogonality uses the same, also for rows as they are (NORMALISED=False).

All of it has a dimension of clients in front, [k, N, D]: the second axis of the grids. Where they
have `counts` [k] (COUNTED), a client's rows beyond its count are padding: no pair has them.
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
def _count_of(counts, client, size, COUNTED: tl.constexpr):
    """How many of a client's rows are real."""
    if COUNTED:
        count = tl.load(counts + client).to(tl.int32)
    else:
        count = size
    return count


@triton.jit
def _similarity_kernel(
    z, l, norm_z, inverse_z, norm_l, inverse_l, counts, loss, grad_z, grad_l, size, dim,
    WITH_GRAD: tl.constexpr, COUNTED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    z, l = z + client * size * dim, l + client * size * dim
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    rows, inside = client * size + row, row < size
    count = _count_of(counts, client, size, COUNTED)
    scale_z = tl.load(inverse_z + rows, mask=inside, other=0.0)
    scale_l = tl.load(inverse_l + rows, mask=inside, other=0.0)
    norms = tl.load(norm_z + rows, mask=inside, other=0.0)
    norms *= tl.load(norm_l + rows, mask=inside, other=0.0)
    cosine = tl.zeros([ROWS], dtype=tl.float32)
    for k in range(0, dim, BLOCK):
        columns = k + tl.arange(0, BLOCK)
        unit_z = _load_rows(z, scale_z, row, size, columns, dim)
        cosine += tl.sum(unit_z * _load_rows(l, scale_l, row, size, columns, dim), 1)
    short = norms < SMALLEST
    factor = tl.where(short, norms / SMALLEST, 1.0)
    tl.store(loss + rows, tl.where(row < count, 1.0 - cosine * factor, 0.0), mask=inside)
    if WITH_GRAD:
        along, real = tl.where(short, 0.0, cosine)[:, None], (row < count)[:, None]
        count = tl.maximum(count, 1)
        for k in range(0, dim, BLOCK):
            columns = k + tl.arange(0, BLOCK)
            unit_z = _load_rows(z, scale_z, row, size, columns, dim)
            unit_l = _load_rows(l, scale_l, row, size, columns, dim)
            at = rows[:, None] * dim + columns[None, :]
            valid = inside[:, None] & (columns < dim)[None, :]
            of_z = scale_z[:, None] * (along * unit_z - factor[:, None] * unit_l) / count
            of_l = scale_l[:, None] * (along * unit_l - factor[:, None] * unit_z) / count
            tl.store(grad_z + at, tl.where(real, of_z, 0.0), mask=valid)
            tl.store(grad_l + at, tl.where(real, of_l, 0.0), mask=valid)


@triton.jit
def _tile_of(products, norm_a, norm_b, at, columns, size, NORMALISED: tl.constexpr):
    """A row's products at `columns`, what a short pair is multiplied by, and which are inside."""
    inside = columns < size
    product = tl.load(products + at * size + columns, mask=inside, other=0.0)
    factor = tl.full(columns.shape, 1.0, tl.float32)
    if NORMALISED:
        norms = tl.load(norm_a + at) * tl.load(norm_b + columns, mask=inside, other=0.0)
        factor = tl.where(norms < SMALLEST, norms / SMALLEST, 1.0)
    return product, factor, inside


@triton.jit
def _sums_kernel(
    products, norm_a, norm_b, sums, counts, size, step, first,
    KIND: tl.constexpr, NORMALISED: tl.constexpr, COUNTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    client, row = tl.program_id(1).to(tl.int64), tl.program_id(0)
    at, norm_b = client * tl.num_programs(0) + row, norm_b + client * step
    count = _count_of(counts, client, first + size, COUNTED)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for begin in range(0, size, BLOCK):
        columns = begin + tl.arange(0, BLOCK)
        product, factor, pair = _tile_of(
            products, norm_a, norm_b, at, columns, size, NORMALISED
        )  # fmt: skip
        if COUNTED:
            pair = pair & (first + columns < count) & (row < count)
        if KIND == 0:
            total += tl.where(pair, tl.abs(product * factor), 0.0)
        else:
            pair = pair & (first + columns != row)
            total += tl.where(pair, tl.exp(product * factor), 0.0)
    tl.store(sums + at, tl.load(sums + at) + tl.sum(total, 0))


@triton.jit
def _weights_kernel(
    products, norm_a, norm_b, sums, sums_b, counts, along, size, step, first, scale,
    KIND: tl.constexpr, NORMALISED: tl.constexpr, COUNTED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    client, row = tl.program_id(1).to(tl.int64), tl.program_id(0)
    at = client * tl.num_programs(0) + row
    norm_b, sums_b = norm_b + client * step, sums_b + client * step
    count = _count_of(counts, client, first + size, COUNTED)
    absolute = tl.zeros([BLOCK], dtype=tl.float32)
    lengthwise = tl.zeros([BLOCK], dtype=tl.float32)
    for begin in range(0, size, BLOCK):
        columns = begin + tl.arange(0, BLOCK)
        product, factor, inside = _tile_of(
            products, norm_a, norm_b, at, columns, size, NORMALISED
        )  # fmt: skip
        pair = inside
        if COUNTED:
            pair = pair & (first + columns < count) & (row < count)
        if KIND == 0:
            weight = tl.where(product > 0.0, 1.0, tl.where(product < 0.0, -1.0, product))
            weight = tl.where(pair, weight, 0.0)
            absolute += tl.where(pair, tl.abs(product * factor), 0.0)
        else:
            share = 1.0 / tl.load(sums + at) + 1.0 / tl.load(sums_b + columns, inside, other=1.0)
            pair = pair & (first + columns != row)
            weight = tl.where(pair, tl.exp(product * factor) * share, 0.0)
        weight *= scale
        lengthwise += tl.where(factor < 1.0, 0.0, weight * product)
        tl.store(products + at * size + columns, weight * factor, mask=inside)
    if KIND == 0:
        tl.store(sums + at, tl.load(sums + at) + tl.sum(absolute, 0))
    if NORMALISED:
        tl.store(along + at, tl.load(along + at) + tl.sum(lengthwise, 0))


def _rows_of_a_program(size: int) -> int:
    """A batch of 128 rows is 128 programs: one for each multiprocessor of an A100, and more."""
    return TOGETHER if size >= MANY else 1


def lengths(x: Tensor) -> tuple[Tensor, Tensor]:  # [..., D] contiguous -> [...], [...]
    """The rows' lengths and what they are scaled by: 1/length, 0 for a zero row."""
    size, dim = x[..., 0].numel(), x.shape[-1]
    norm, inverse = (x.new_empty(x.shape[:-1], dtype=torch.float32) for _ in range(2))
    rows = _rows_of_a_program(size)
    _lengths_kernel[(triton.cdiv(size, rows),)](
        x, norm, inverse, size, dim, ROWS=rows, BLOCK=512, num_warps=4
    )
    return norm, inverse


@dataclass(frozen=True)
class Rows:
    """Rows as they enter products, float32 [k, N, D], and what made them so."""

    unit: Tensor  # scaled to length 1, or as they are
    norm: Tensor  # [k, N], their lengths before that
    inverse: Tensor  # [k, N], what they were multiplied by
    normalised: bool


def unit_rows(x: Tensor) -> Rows:  # [k, N, D] contiguous
    norm, inverse = lengths(x)
    return Rows(x.to(torch.float32) * inverse[..., None], norm, inverse, normalised=True)


def as_they_are(x: Tensor, norm: Tensor | None = None) -> Rows:  # [k, N, D], [k, N]
    """Rows that nothing is done to; with `norm` they are unit rows of those that were so long."""
    rows = x.to(torch.float32)
    if norm is None:
        return Rows(rows, rows, rows, normalised=False)  # lengths that no kernel reads
    return Rows(rows, norm, norm, normalised=True)


def _chunks(a: Rows, b: Rows) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    """Columns of the products of a and b, at most PRODUCTS elements at a time: the first, the rows
    of b and their lengths, the products [k, N, C]."""
    columns = max(1, PRODUCTS // a.unit[..., 0].numel())
    for first in range(0, b.unit.shape[1], columns):
        rows = b.unit[:, first : first + columns]
        yield first, rows, b.norm[:, first : first + columns], torch.bmm(a.unit, rows.mT)


def pair_sums(a: Rows, b: Rows, kind: int, counts: Tensor | None = None) -> Tensor:  # -> [k, N]
    """Sums over the rows of b for each row of a."""
    clients, size, _ = a.unit.shape
    sums = a.unit.new_zeros(clients, size)
    for first, rows, norm, products in _chunks(a, b):
        _sums_kernel[(size, clients)](
            products, a.norm, norm, sums, sums if counts is None else counts, rows.shape[1],
            b.unit.shape[1], first, KIND=kind, NORMALISED=a.normalised, COUNTED=counts is not None,
            BLOCK=COLUMNS, num_warps=4,
        )  # fmt: skip
    return sums


def pair_gradient(
    a: Rows,
    b: Rows,
    kind: int,
    scale: float | Tensor,
    sums: Tensor | None = None,
    counts: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # -> [k, N], [k, N, D]
    """The sums, and scale × the gradient for a: of |cos|, or of log sum exp cos.

    The latter needs the sums of all rows beforehand, the former makes them by the way. `scale` [k]
    is each client's own.
    """
    clients, size, _ = a.unit.shape
    sums = a.unit.new_zeros(clients, size) if sums is None else sums
    along, grad = torch.zeros_like(sums), torch.zeros_like(a.unit)
    for first, rows, norm, products in _chunks(a, b):
        _weights_kernel[(size, clients)](
            products, a.norm, norm, sums, sums[:, first:], sums if counts is None else counts,
            along, rows.shape[1], b.unit.shape[1], first,
            1.0 if isinstance(scale, Tensor) else scale, KIND=kind, NORMALISED=a.normalised,
            COUNTED=counts is not None, BLOCK=COLUMNS, num_warps=4,
        )  # fmt: skip
        grad.baddbmm_(products, rows)
    if a.normalised:  # what lies along the row does not turn it
        by = a.inverse * scale[:, None] if isinstance(scale, Tensor) else a.inverse
        grad.addcmul_(a.unit, along[..., None], value=-1.0).mul_(by[..., None])
    return sums, grad


def _similarity(
    z: Tensor, l: Tensor, counts: Tensor | None, with_grad: bool
) -> list[Tensor]:  # 2 × [k, B, D] -> [k, B], and gradients
    clients, size, dim = z.shape
    loss = z.new_empty((clients, size), dtype=torch.float32)
    shape = (clients, size if with_grad else 0, dim)
    grads = [x.new_empty(shape, dtype=torch.float32) for x in (z, l)]
    rows = _rows_of_a_program(size)
    _similarity_kernel[(triton.cdiv(size, rows), clients)](
        z, l, *lengths(z), *lengths(l), loss if counts is None else counts, loss, *grads, size, dim,
        WITH_GRAD=with_grad, COUNTED=counts is not None, ROWS=rows, BLOCK=512, num_warps=4,
    )  # fmt: skip
    return [loss, *grads]


def index_losses(
    z: Tensor, u: Tensor, l: Tensor, counts: Tensor | None, terms: int, with_grad: bool
) -> tuple[Tensor, ...]:  # 3 × [B, D] -> [3], sim_z, sim_l, orth_z, orth_u, div_u
    """Launch on the current stream; gradients that are not wanted are [0, D].

    Of clients: 3 × [k, B, D] -> [k, 3] and gradients [k, B, D] or [k, 0, D].
    """
    if counts is None:
        results = _losses_of(*(x.contiguous()[None] for x in (z, u, l)), None, terms, with_grad)
        return tuple(result[0] for result in results)
    return _losses_of(*(x.contiguous() for x in (z, u, l, counts)), terms, with_grad)


def _losses_of(
    z: Tensor, u: Tensor, l: Tensor, counts: Tensor | None, terms: int, with_grad: bool
) -> tuple[Tensor, ...]:  # 3 × [k, B, D] -> [k, 3] and five gradients
    clients, size, dim = z.shape
    losses = z.new_zeros((clients, 3), dtype=torch.float32)
    grads = [z.new_empty((clients, 0, dim), dtype=torch.float32) for _ in range(5)]
    if size == 0 or clients == 0:
        return losses, *grads
    with torch.cuda.device_of(z):
        n: float | Tensor = float(size) if counts is None else counts.clamp(min=1).float()
        if terms & SIM:
            rows, grads[0], grads[1] = _similarity(z, l, counts, with_grad)
            losses[:, 0] = rows.sum(1) / n
        if terms & (ORTH | DIV):
            unit_u = unit_rows(u)
        if terms & ORTH:
            unit_z, scale = unit_rows(z), 1 / n**2
            if with_grad:
                sums, grads[2] = pair_gradient(unit_z, unit_u, ABSOLUTE, scale, counts=counts)
                _, grads[3] = pair_gradient(unit_u, unit_z, ABSOLUTE, scale, counts=counts)
            else:
                sums = pair_sums(unit_z, unit_u, ABSOLUTE, counts)
            losses[:, 1] = sums.sum(1) / n / n
        if terms & DIV:
            sums = pair_sums(unit_u, unit_u, EXPONENTIAL, counts)
            # A row without another has the sum 0, and no part in the loss.
            losses[:, 2] = torch.where(sums == 0.0, 1.0, sums).log().sum(1) / n
            if with_grad:
                _, grads[4] = pair_gradient(unit_u, unit_u, EXPONENTIAL, 1 / n, sums, counts)
    return losses, *grads


_PAIRS = {"products": "*fp32", "norm_a": "*fp32", "norm_b": "*fp32", "sums": "*fp32",
          "counts": "*i64", "size": "i32", "step": "i32", "first": "i32"}  # fmt: skip


def aot_pairs(kind: int, *, normalised: bool = True, counted: bool = False) -> list[tuple]:
    """The two pair kernels for the ahead-of-time check: kernel, types, constants, warps."""
    constants = {"KIND": kind, "NORMALISED": normalised, "COUNTED": counted, "BLOCK": COLUMNS}
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
         "inverse_l": "*fp32", "counts": "*i64", "loss": "*fp32", "grad_z": "*fp32",
         "grad_l": "*fp32", "size": "i32", "dim": "i32"},
        {"WITH_GRAD": True, "COUNTED": counted, "ROWS": 1, "BLOCK": 512},
        4,
    )
    for counted in (False, True)
]  # fmt: skip
for _kind in (ABSOLUTE, EXPONENTIAL):
    for _counted in (False, True):
        AOT += aot_pairs(_kind, counted=_counted)
