"""Drawing a cohort by Gumbel top-k.

    cohort = the k largest of  s_i / tau + g_i,  g ~ Gumbel     scores s [M] -> ids [k], ascending

These are exactly k successive draws without replacement with probabilities proportional to
exp(s_i / tau). Keys are never exponentiated, so no temperature overflows them.

There is no fused backend: a draw happens once per round, its noise comes from NumPy's generator
(so that every backend and device draws the same cohort), and the rest is one selection in O(M).
"""

import numpy as np
import torch
from torch import Tensor

# At or below this temperature scores are ranked and noise only breaks ties: s / tau would
# otherwise drown the noise in rounding.
RANKING_TAU = 1e-6

Values = Tensor | np.ndarray


def sample_cohort(
    scores: Values,
    k: int,
    tau: float = 1.0,
    *,
    rng: np.random.Generator | None = None,
    gumbel: np.ndarray | None = None,
    eligible: Values | None = None,
    rest: Values | None = None,
) -> Tensor:  # [M] -> [k]
    """Draw k clients without replacement, proportional to exp(scores / tau); ascending ids.

    Give `rng`, of which gumbel(M) is drawn, or the noise `gumbel` [M] itself. Uniform sampling
    and the first round: scores of zeros. Equal keys: the lower id is taken. With tau <= 1e-6
    clients are ranked by score and the noise breaks ties.

    `eligible` [M] is True for clients that may be drawn. Are there fewer than k of them, all are
    taken and resting clients fill the cohort, longest `rest` [M] (rounds since the client's last
    participation) first, then lower id. The result is an int64 tensor on the CPU.
    """
    s = _numpy(scores).astype(np.float64)
    _check(s, tau)
    clients = len(s)
    if not 1 <= k <= clients:
        raise ValueError(f"sample_cohort: k must be 1..{clients} (the clients), got {k}")
    if (rng is None) == (gumbel is None):
        raise ValueError("sample_cohort: give either rng or gumbel")
    noise = rng.gumbel(size=clients) if rng is not None else np.asarray(gumbel, np.float64)
    if noise.shape != s.shape:
        raise ValueError(f"sample_cohort: gumbel must be [{clients}], got {noise.shape}")
    candidates = np.arange(clients)
    if eligible is not None:
        mask = _numpy(eligible)
        if mask.dtype != np.bool_ or mask.shape != (clients,):
            raise ValueError(
                f"sample_cohort: eligible must be bool [{clients}], got {mask.dtype} {mask.shape}"
            )
        candidates = np.flatnonzero(mask)
        if len(candidates) < k:
            return _fill(candidates, ~mask, rest, k)
    chosen = _draw(s[candidates], noise[candidates], k, tau)
    return torch.from_numpy(np.sort(candidates[chosen]))


def _draw(scores: np.ndarray, noise: np.ndarray, k: int, tau: float) -> np.ndarray:
    if tau > RANKING_TAU:
        return _largest(scores / tau + noise, k)
    # Everybody above the k-th score, and of those who share it the largest noise.
    kth = np.partition(scores, -k)[-k]
    sure, tied = np.flatnonzero(scores > kth), np.flatnonzero(scores == kth)
    return np.concatenate([sure, tied[_largest(noise[tied], k - len(sure))]])


def _largest(keys: np.ndarray, k: int) -> np.ndarray:
    """Positions of the k largest keys, the lower position among equals; O(len(keys))."""
    kth = np.partition(keys, -k)[-k]
    above = np.flatnonzero(keys > kth)
    return np.concatenate([above, np.flatnonzero(keys == kth)[: k - len(above)]])


def _fill(drawn: np.ndarray, resting: np.ndarray, rest: Values | None, k: int) -> Tensor:
    """All that are eligible, and the longest resting clients up to k."""
    if rest is None:
        raise ValueError(
            f"sample_cohort: only {len(drawn)} of the k = {k} clients are eligible; give rest, "
            "the rounds since each client's last participation, to admit resting clients"
        )
    rounds = _numpy(rest).astype(np.float64)
    if rounds.shape != resting.shape or np.isnan(rounds).any():
        raise ValueError(
            f"sample_cohort: rest must be [{len(resting)}] without NaN, got {rounds.shape}"
        )
    others = np.flatnonzero(resting)
    admitted = others[_largest(rounds[others], k - len(drawn))]
    return torch.from_numpy(np.sort(np.concatenate([drawn, admitted])))


def _numpy(values: Values) -> np.ndarray:
    if not isinstance(values, Tensor):
        return np.asarray(values)
    values = values.detach()
    return (values.float() if values.dtype == torch.bfloat16 else values).cpu().numpy()


def _check(scores: np.ndarray, tau: float) -> None:
    if not tau > 0:
        raise ValueError(f"sample_cohort: tau must be > 0, got {tau}")
    if scores.ndim != 1:
        raise ValueError(f"sample_cohort: scores must be [M], got {scores.shape}")
    if not np.isfinite(scores).all():
        first = int(np.flatnonzero(~np.isfinite(scores))[0])
        raise ValueError(
            f"sample_cohort: scores must be finite, client {first} has {scores[first]}"
        )
