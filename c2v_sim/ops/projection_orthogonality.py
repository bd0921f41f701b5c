"""projection_orthogonality: keeps projected features away from every client's feature index.

    L_orth = 1/(B·M) sum_{j,i} |<z_p[j], index[i] / |index[i]|>|        [B, D], [M, D] -> scalar

That is form "unit": z_p is not normalised, so a shorter z_p has a smaller loss. "raw" normalises
neither, "cosine" both: |cos(z_p[j], index[i])| as in index_losses. A zero row of z_p or index
counts as 0 and takes no gradient. The index is a constant: it takes no gradient, and its unit rows
and lengths can be made once (`prepared_index`). The fused backends stream it by and never hold all
of the B×M products (the CPU none, a GPU at most 16 MB at a time). No rows or no clients: 0. NaN and
Inf give a loss that is not finite. Half storage is computed in float32.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from c2v_sim.ops._loss import loss_operator, unit_rows
from c2v_sim.ops.index_losses import cosines_with

FORMS = ("unit", "cosine", "raw")


class PreparedIndex(NamedTuple):
    """What a form reads of a constant index."""

    rows: Tensor  # [M, D]
    lengths: Tensor | None  # [M], of the rows before they became unit rows; "cosine" alone


def projection_orthogonality(
    z_p: Tensor,
    index: Tensor | PreparedIndex,
    form: str = "unit",
    *,
    backend: str | None = None,
) -> Tensor:
    """L_orth of z_p [B, D] and the constant index [M, D].

    A training loop calls prepared_index(index, form) once and gives its result as `index`, instead
    of having the same rows normalised in every step.
    """
    if z_p.dim() != 2:
        raise ValueError(f"projection_orthogonality: z_p must be [B, D], got {tuple(z_p.shape)}")
    _check_form(form)
    prepared = index if isinstance(index, PreparedIndex) else prepared_index(index, form)
    index, lengths = prepared
    if index.dim() != 2 or index.shape[1] != z_p.shape[1]:
        raise ValueError(
            f"projection_orthogonality: index must be [M, {z_p.shape[1]}], got {tuple(index.shape)}"
        )
    if index.requires_grad:
        raise ValueError("projection_orthogonality: index is a constant; pass index.detach()")
    if (lengths is None) == (form == "cosine"):
        raise ValueError(f"projection_orthogonality: the index was not prepared for form {form!r}")
    with_grad = torch.is_grad_enabled() and z_p.requires_grad
    return _operator(z_p, index, lengths, with_grad, backend=backend)[0]


def prepared_index(index: Tensor, form: str = "unit") -> PreparedIndex:  # [M, D]
    """What the form reads of a constant index: its unit rows (zero rows stay zero), for "cosine"
    with their lengths; "raw" reads it as it is."""
    _check_form(form)
    if form == "raw" or index.dim() != 2:
        return PreparedIndex(index, None)
    rows, lengths = unit_rows(_at_least_float32(index))
    return PreparedIndex(rows, lengths if form == "cosine" else None)


def _check_form(form: str) -> None:
    if form not in FORMS:
        raise ValueError(
            f"projection_orthogonality: unknown form {form!r}; known: {', '.join(FORMS)}"
        )


def _at_least_float32(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def projection_orthogonality_torch(
    z_p: Tensor, rows: Tensor, lengths: Tensor | None, with_grad: bool = False
) -> tuple[Tensor, ...]:
    """The definition on prepared rows: (loss,)."""
    z_p, rows = _at_least_float32(z_p), _at_least_float32(rows)
    if len(z_p) == 0 or len(rows) == 0:
        return (z_p[:0].sum(),)
    products = z_p @ rows.T if lengths is None else cosines_with(z_p, rows, lengths)
    return (products.abs().mean(),)


def _fake(
    z_p: Tensor, rows: Tensor, lengths: Tensor | None, with_grad: bool
) -> tuple[Tensor, Tensor]:
    size = z_p.shape[0] if with_grad else 0
    return (
        z_p.new_empty((), dtype=torch.float32),
        z_p.new_empty((size, z_p.shape[1]), dtype=torch.float32),
    )


_operator = loss_operator(
    "projection_orthogonality",
    "(Tensor z_p, Tensor index, Tensor? lengths, bool with_grad) -> (Tensor, Tensor)",
    projection_orthogonality_torch,
    fake=_fake,
    scaled=lambda upstream, gradients, options: (upstream * gradients[0],),
)
