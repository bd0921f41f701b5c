"""Drawing a cohort by Gumbel top-k.

    cohort = the k largest of  s_i / tau + g_i,  g ~ Gumbel     scores s [M] -> ids [k], ascending

These are exactly k successive draws without replacement with probabilities proportional to
exp(s_i / tau). Keys are never exponentiated, so no temperature overflows them.

There is no fused backend: a draw happens once per round, its noise comes from NumPy's generator
(so that every backend and device draws the same cohort), and the rest is one selection in O(M).

NumPy's Gumbel variate is g = -log(-log(1 - v)) of one uniform v. Of many clients only those few get
their logarithms whose v lets them be among the k largest at all (`_draw_of_many`): the same cohort
as with gumbel(M), about 3 ns a client instead of 30.
"""

import math

import numpy as np
import torch
from torch import Tensor

# At or below this temperature scores are ranked and noise only breaks ties: s / tau would
# otherwise drown the noise in rounding.
RANKING_TAU = 1e-6
MANY = 2**14  # clients, from which on few of them get their logarithms
FEW = -3.0  # a bound on v of exp(FEW) leaves a twentieth of the clients
BLOCK = 2**15  # clients at a time: what is made of them stays in the cache
LOOK = 2**13  # of them are looked at, to know about how large the k-th largest key is

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
    s = _numpy(scores)
    _check(s, tau)
    clients = len(s)
    if not 1 <= k <= clients:
        raise ValueError(f"sample_cohort: k must be 1..{clients} (the clients), got {k}")
    if (rng is None) == (gumbel is None):
        raise ValueError("sample_cohort: give either rng or gumbel")
    if gumbel is not None and np.shape(gumbel) != s.shape:
        raise ValueError(f"sample_cohort: gumbel must be [{clients}], got {np.shape(gumbel)}")
    mask = None if eligible is None else _numpy(eligible)
    if mask is not None:
        if mask.dtype != np.bool_ or mask.shape != (clients,):
            raise ValueError(
                f"sample_cohort: eligible must be bool [{clients}], got {mask.dtype} {mask.shape}"
            )
        if np.count_nonzero(mask) < k:
            return _fill(np.flatnonzero(mask), ~mask, rest, k)
    if rng is not None and clients >= MANY and tau > RANKING_TAU:
        chosen = _draw_of_many(s, k, tau, rng, mask)
        if chosen is not None:
            return torch.from_numpy(chosen)
    noise = rng.gumbel(size=clients) if rng is not None else np.asarray(gumbel, np.float64)
    candidates = np.arange(clients) if mask is None else np.flatnonzero(mask)
    chosen = _draw(s[candidates].astype(np.float64), noise[candidates], k, tau)
    return torch.from_numpy(np.sort(candidates[chosen]))


def _draw_of_many(
    scores: np.ndarray, k: int, tau: float, rng: np.random.Generator, eligible: np.ndarray | None
) -> np.ndarray | None:
    """The k largest keys of all that are eligible, ascending, with the noise of rng.gumbel(M).

    None where that cannot be told from a few logarithms; `rng` is then as it was before.

        key >= floor  =>  -log(1 - v) <= exp(s / tau - floor)  =>  v <= exp(s / tau - floor)

    since v <= -log(1 - v). Where k keys are above the floor, nobody below it is drawn.
    """
    before = rng.bit_generator.state
    v = rng.random(len(scores))
    chosen = _of_uniform(scores, k, tau, v, eligible)
    if chosen is None:
        rng.bit_generator.state = before
    return chosen


def _of_uniform(
    scores: np.ndarray, k: int, tau: float, v: np.ndarray, eligible: np.ndarray | None
) -> np.ndarray | None:
    floor = _likely_floor(scores, k, tau, v, eligible)
    if floor is None:
        return None
    maybe = _possible(scores, tau, v, floor - _rounding(floor))
    whole = v[maybe].all()  # at v = 0, which is always among them, gumbel takes another v
    if eligible is not None:
        maybe = maybe[eligible[maybe]]
    keys = _keys(scores[maybe], tau, v[maybe])
    if not whole or np.count_nonzero(keys > floor + _rounding(floor)) < k:
        return None
    kth = np.partition(keys, -k)[-k]
    close = np.abs(keys - kth) <= _rounding(kth)
    sure, tied = maybe[keys > kth + _rounding(kth)], maybe[close]
    if len(sure) + len(tied) > k:  # the last bit decides, and it must be that of gumbel
        exact = [-math.log(-math.log(1 - x)) for x in v[tied].tolist()]
        exact_keys = scores[tied].astype(np.float64) / tau + np.array(exact)
        tied = tied[_largest(exact_keys, k - len(sure))]
    return np.sort(np.concatenate([sure, tied]))


def _possible(scores: np.ndarray, tau: float, v: np.ndarray, floor: float) -> np.ndarray:
    """Those with v <= exp(s / tau - floor), ascending."""

    def within(some: np.ndarray, of_them: np.ndarray) -> np.ndarray:
        bound = np.multiply(of_them, 1 / tau, dtype=np.float64)
        bound -= floor
        return np.flatnonzero(some <= np.exp(bound, out=bound))

    with np.errstate(over="ignore", under="ignore"):
        first = _distinct(scores).max(keepdims=True)
        if first[0] / tau - floor < FEW:  # the largest score's bound leaves few to look at
            few = within(v, first)
            return few if scores.strides == (0,) else few[within(v[few], scores[few])]
        blocks = range(0, len(v), BLOCK)
        parts = (within(v[i : i + BLOCK], scores[i : i + BLOCK]) + i for i in blocks)
        return np.concatenate(list(parts))


def _likely_floor(
    scores: np.ndarray, k: int, tau: float, v: np.ndarray, eligible: np.ndarray | None
) -> float | None:
    """A key that somewhat more than k clients are likely to reach, from looking at some of them.

    None where too few were looked at: a cohort of nearly all clients.
    """
    step = len(v) // LOOK | 1  # odd: clients in turns of two, four, … are all looked at
    looked = np.arange(0, len(v), step)
    among = len(v)
    if eligible is not None:
        looked, among = looked[eligible[::step]], int(np.count_nonzero(eligible))
    expected = k * len(looked) / among
    rank = math.ceil(expected + 4 * math.sqrt(expected) + 4)
    if rank > len(looked):
        return None
    keys = _keys(scores[looked], tau, v[looked])
    return float(np.partition(keys, -rank)[-rank])


def _keys(scores: np.ndarray, tau: float, v: np.ndarray) -> np.ndarray:
    """s / tau + g but for the last bits: NumPy's own logarithms are not those of its gumbel."""
    with np.errstate(divide="ignore"):  # v = 0: infinite, and not used
        return scores.astype(np.float64) / tau - np.log(-np.log1p(-v))


def _rounding(key: float) -> float:
    """More than what a key may be wrong by."""
    return 1e-12 * (1 + abs(key))


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


def _distinct(scores: np.ndarray) -> np.ndarray:
    """One number where it is that of all, as in uniform sampling (numpy.broadcast_to)."""
    return scores[:1] if scores.strides == (0,) else scores


def _check(scores: np.ndarray, tau: float) -> None:
    if not tau > 0:
        raise ValueError(f"sample_cohort: tau must be > 0, got {tau}")
    if scores.ndim != 1:
        raise ValueError(f"sample_cohort: scores must be [M], got {scores.shape}")
    if not np.isfinite(_distinct(scores)).all():
        first = int(np.flatnonzero(~np.isfinite(scores))[0])
        raise ValueError(
            f"sample_cohort: scores must be finite, client {first} has {scores[first]}"
        )
