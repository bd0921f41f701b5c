"""client_scores: similarity of every client to the cohort, one read of the index.

    s = A omega,  A_ij = ( cos(f_i, f_j) + cos(l_i, l_j) ) / 2,  omega_j = N_j / sum_cohort N

for feature index f [M, D_f], label index l [M, D_l], cohort [k] -> s [M]. A is never formed: with
unit rows F, G, s = ( F (F^T omega) + G (G^T omega) ) / 2. The weighted sum of the cohort's unit
rows is formed once, then each row's dot product and length come from the same read:
O((M + k) D). A zero row has cosine 0 with everything.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from c2v_sim.ops._dispatch import STORAGE, Operator
from c2v_sim.ops._loss import unit_rows

Ids = Tensor | np.ndarray | Sequence[int]


def client_scores(
    feature_index: Tensor,
    label_index: Tensor | None,
    cohort: Ids,
    sizes: Tensor | np.ndarray | Sequence[float],
    *,
    backend: str | None = None,
) -> Tensor:  # [M, D_f], [M, D_l], [k], [M] or [k] -> [M]
    """Score all M clients against the clients `cohort`, weighted by their sample counts `sizes`.

    Rows need not be unit vectors. With `label_index=None` the score is the single cosine of
    `feature_index` (no 1/2). `sizes` [M] holds every client's count, [k] (k < M) the cohort's.
    bfloat16 and float16 indices are accumulated in float32, and the result is float32 (float64
    for a float64 index). Not differentiable: scores steer sampling and aggregation.

    A row with NaN or Inf has score NaN; one in the cohort makes every score NaN.
    """
    clients = _check_index(feature_index, label_index)
    ids = _client_ids(cohort, clients)
    counts = _cohort_counts(sizes, ids, clients).to(feature_index.device)
    ids = ids.to(feature_index.device)
    omega = (counts / counts.sum()).to(torch.promote_types(feature_index.dtype, torch.float32))
    with torch.no_grad():
        return _operator(feature_index, label_index, ids, omega, backend=backend)


def _client_ids(cohort: Ids, clients: int) -> Tensor:  # [k], where they are
    ids = torch.as_tensor(cohort)
    if ids.dim() != 1 or ids.shape[0] == 0 or ids.is_floating_point():
        raise ValueError(
            "client_scores: cohort must be [k] client ids with k >= 1, got "
            f"{tuple(ids.shape)} {ids.dtype}"
        )
    inside = ((ids >= 0) & (ids < clients)).all()
    if not ids.is_cpu:
        torch._assert_async(inside, "client_scores: cohort names a client outside the index")
    elif not inside:
        raise ValueError(
            f"client_scores: cohort must name clients 0..{clients - 1}, got {ids.tolist()}"
        )
    return ids.to(torch.int64)


def _cohort_counts(
    sizes: Tensor | np.ndarray | Sequence[float], ids: Tensor, clients: int
) -> Tensor:  # [M] or [k] -> [k]
    """Where the sizes are: of all M only the cohort's go to another device."""
    counts = torch.as_tensor(sizes)
    if counts.shape == (clients,):
        counts = counts[ids.to(counts.device)]
    elif counts.shape != ids.shape:
        raise ValueError(
            f"client_scores: sizes must be [{clients}] or [{len(ids)}], got {tuple(counts.shape)}"
        )
    counts = counts.to(torch.float64)
    if counts.is_cpu and not (counts.min() >= 0 and counts.sum() > 0):
        raise ValueError(f"client_scores: sizes must be counts >= 0, got {counts.tolist()}")
    return counts


def _check_index(feature_index: Tensor, label_index: Tensor | None) -> int:
    """The number of clients."""
    named = {"feature_index": feature_index, "label_index": label_index}
    for name, index in named.items():
        if index is None:
            continue
        if index.dim() != 2:
            raise ValueError(f"client_scores: {name} must be [M, D], got {tuple(index.shape)}")
        if len(index) != len(feature_index) or index.dtype != feature_index.dtype:
            raise ValueError(
                f"client_scores: {name} must have {len(feature_index)} rows of "
                f"{feature_index.dtype} as feature_index, got {len(index)} of {index.dtype}"
            )
    return len(feature_index)


def client_scores_torch(
    feature_index: Tensor, label_index: Tensor | None, cohort: Tensor, omega: Tensor
) -> Tensor:
    """The definition."""
    unit, _ = unit_rows(feature_index.to(omega.dtype))
    scores = unit @ (omega @ unit[cohort])
    if label_index is None:
        return scores
    unit, _ = unit_rows(label_index.to(omega.dtype))
    return (scores + unit @ (omega @ unit[cohort])) / 2


def _fake(feature_index, label_index, cohort, omega):
    return feature_index.new_empty(feature_index.shape[0], dtype=torch.float32)


_operator = Operator(
    "client_scores",
    "(Tensor feature_index, Tensor? label_index, Tensor cohort, Tensor omega) -> Tensor",
    client_scores_torch,
    fake=_fake,
    dtypes=STORAGE,
)
