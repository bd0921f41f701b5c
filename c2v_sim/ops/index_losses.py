"""The losses of the index-generation network over a batch, and their gradients, in one pass.

    L_sim  = mean_j (1 - cos(z_j, l_j))                          z, u, l: [B, D]
    L_orth = 1/B² sum_{j,k} |cos(z_j, u_k)|
    L_div  = mean_j log sum_{k≠j} exp(cos(u_j, u_k))             0 if B < 2
    cos(a, b) = <a, b> / max(|a||b|, 1e-8)

`index_losses` gives all three; the functions named after one loss compute that one alone, with the
same kernels. The fused backends never hold a B×B matrix whole (the CPU no part of it, a GPU at most
16 MB): the gradient of each loss is formed beside its value, and backward only scales and adds.

k clients at once: z, u, l [k, B, D] and `counts` [k] give three losses [k]. Those of client i are
of its first counts[i] rows alone, B then being that number; the other rows are padding, which must
be finite and takes no gradient. A client without rows has losses 0.

A zero vector has cosine 0 with everything and takes no gradient. A batch of no rows has losses 0.
NaN and Inf in a row (and, in the fused backends, a row whose squared length overflows float32)
give NaN in every loss and gradient that depends on it. Half storage is computed in float32; the
losses are float32 then, gradients have the dtype of their input. Only backend="torch" can be
differentiated twice.
"""

# ruff: noqa: E741  (l is the specification's name)

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from c2v_sim.ops._loss import loss_operator, unit_rows

SIM, ORTH, DIV = 1, 2, 4  # bits of `terms`; csrc/cpu/index_losses.cpp knows them too
SMALLEST = 1e-8


def index_losses(
    z: Tensor,
    u: Tensor,
    l: Tensor,
    counts: Tensor | None = None,
    *,
    backend: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # 3 × [B, D] -> 3 scalars, 3 × [k, B, D] -> 3 × [k]
    """(L_sim, L_orth, L_div) of data encodings z, feature indices u and label embeddings l.

    `counts` (int64 [k], on their device) goes with k clients; its values must be in 0..B.
    """
    if counts is not None and (
        counts.dtype != torch.int64 or counts.shape != z.shape[:1] or counts.device != z.device
    ):
        raise ValueError(
            f"index_losses: counts must be int64 [{len(z)}] on {z.device}, "
            f"got {counts.dtype}, {tuple(counts.shape)}, on {counts.device}"
        )
    terms = SIM | ORTH | DIV
    sim, orth, div = _losses("index_losses", z, u, l, terms, backend, counts).unbind(-1)
    return sim, orth, div


def similarity_loss(z: Tensor, l: Tensor, *, backend: str | None = None) -> Tensor:
    """L_sim of z, l [B, D]: how far each encoding points away from its label embedding."""
    return _losses("similarity_loss", z, None, l, SIM, backend)[0]


def orthogonality_loss(z: Tensor, u: Tensor, *, backend: str | None = None) -> Tensor:
    """L_orth of z, u [B, D]: the mean absolute cosine over all B² pairs."""
    return _losses("orthogonality_loss", z, u, None, ORTH, backend)[1]


def diversity_loss(u: Tensor, *, backend: str | None = None) -> Tensor:
    """L_div of u [B, D]: small when the rows point away from one another."""
    return _losses("diversity_loss", None, u, None, DIV, backend)[2]


def _losses(
    name: str,
    z: Tensor | None,
    u: Tensor | None,
    l: Tensor | None,
    terms: int,
    backend: str | None,
    counts: Tensor | None = None,
) -> Tensor:  # [3] or [k, 3]
    given = {n: t for n, t in (("z", z), ("u", u), ("l", l)) if t is not None}
    shape = next(iter(given.values())).shape
    for n, t in given.items():
        if t.dim() != (2 if counts is None else 3):
            wanted = "[B, D]" if counts is None else "[k, B, D] with counts"
            raise ValueError(f"{name}: {n} must be {wanted}, got {tuple(t.shape)}")
        if t.shape != shape:
            first = next(iter(given))
            raise ValueError(
                f"{name}: {n} must have the shape of {first}, {tuple(shape)}, got {tuple(t.shape)}"
            )
    with_grad = torch.is_grad_enabled() and any(t.requires_grad for t in given.values())
    stand_in = next(iter(given.values())).detach()  # for what the chosen terms do not read
    tensors = [stand_in if t is None else t for t in (z, u, l)]
    return _operator(*tensors, counts, terms, with_grad, backend=backend)[0]


def cosines_torch(a: Tensor, b: Tensor) -> Tensor:  # [N, D], [M, D] -> [N, M]
    """The definition of all cosines, by unit rows: <â, b̂> |a||b| / max(|a||b|, 1e-8)."""
    return cosines_with(a, *unit_rows(b))


def cosines_with(a: Tensor, unit_b: Tensor, norm_b: Tensor) -> Tensor:
    """The same with unit rows b̂ [M, D] and the lengths [M] that b had."""
    unit_a, norm_a = unit_rows(a)
    norms = norm_a[:, None] * norm_b
    return unit_a @ unit_b.T * torch.where(norms < SMALLEST, norms / SMALLEST, 1)


def index_losses_torch(
    z: Tensor,
    u: Tensor,
    l: Tensor,
    counts: Tensor | None = None,
    terms: int = SIM | ORTH | DIV,
    with_grad: bool = False,
) -> tuple[Tensor, ...]:
    """The definition: ([L_sim, L_orth, L_div],), 0 for those that `terms` leaves out."""
    if counts is not None:  # of each client alone
        every = [
            index_losses_torch(z[i, :n], u[i, :n], l[i, :n], None, terms)[0]
            for i, n in enumerate(counts.tolist())
        ]
        return (torch.stack(every) if every else z.new_zeros(0, 3),)
    z, u, l = (t.to(torch.promote_types(t.dtype, torch.float32)) for t in (z, u, l))
    rows = len(z)
    sim = orth = div = z[:0].sum() + u[:0].sum() + l[:0].sum()  # 0, but part of the graph
    if rows > 0 and terms & SIM:
        (unit_z, norm_z), (unit_l, norm_l) = unit_rows(z), unit_rows(l)
        norms = norm_z * norm_l
        shortened = torch.where(norms < SMALLEST, norms / SMALLEST, 1)
        sim = (1 - (unit_z * unit_l).sum(1) * shortened).mean()
    if rows > 0 and terms & ORTH:
        orth = cosines_torch(z, u).abs().mean()
    if rows > 1 and terms & DIV:
        diagonal = torch.eye(rows, dtype=torch.bool, device=u.device)
        div = cosines_torch(u, u).masked_fill(diagonal, -torch.inf).logsumexp(1).mean()
    return (torch.stack([sim, orth, div]),)


def _fake(
    z: Tensor, u: Tensor, l: Tensor, counts: Tensor | None, terms: int, with_grad: bool
) -> tuple[Tensor, ...]:
    clients = z.shape[:-2]

    def rows(x: Tensor, term: int) -> Tensor:
        wanted = bool(terms & term) and with_grad
        shape = (*clients, x.shape[-2] if wanted else 0, x.shape[-1])
        return x.new_empty(shape, dtype=torch.float32)

    losses = z.new_empty((*clients, 3), dtype=torch.float32)
    return losses, rows(z, SIM), rows(l, SIM), rows(z, ORTH), rows(u, ORTH), rows(u, DIV)


def _scaled(
    upstream: Tensor, gradients: Sequence[Tensor], options: Sequence[Any]
) -> list[Tensor | None]:
    """For z, u, l: the losses' upstream gradients differ, so each gradient was formed alone."""
    terms = options[-2]
    of_loss = upstream[..., None, None].unbind(-3) if upstream.dim() > 1 else upstream.unbind()
    sim_z, sim_l, orth_z, orth_u, div_u = gradients
    parts = (
        [(0, SIM, sim_z), (1, ORTH, orth_z)],
        [(1, ORTH, orth_u), (2, DIV, div_u)],
        [(0, SIM, sim_l)],
    )
    totals: list[Tensor | None] = []
    for of_one in parts:
        total: Tensor | None = None
        for i, term, g in of_one:
            if terms & term:  # in place: a pass over memory less than an addition
                total = of_loss[i] * g if total is None else total.addcmul_(of_loss[i], g)
        totals.append(total)
    return totals


_operator = loss_operator(
    "index_losses",
    "(Tensor z, Tensor u, Tensor l, Tensor? counts, int terms, bool with_grad)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    index_losses_torch,
    fake=_fake,
    scaled=_scaled,
)
