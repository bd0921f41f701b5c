"""Stage 6: who trains this round. A policy maps (seed, round, sizes [M], k) to k client ids.

Each client draws one Gumbel variate and the k largest keys are taken: the same stream that
similarity-steered sampling adds its scores to, so all begin alike.

    uniform       key_i = g_i
    size          key_i = log N_i + g_i    without replacement, proportional to N_i
    rested        key_i = g_i, of clients that have rested as long as with an index: its control
    round-robin   everybody once, then all again, in the order of the first round's keys
"""

import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from c2v_sim import ops
from c2v_sim.system.seeding import SAMPLING, rng


def cohort_size(participation: float, clients: int) -> int:
    """Clients in a round: floor(participation · clients), at least one."""
    return max(1, int(participation * clients + 1e-9))


def uniform(seed: int, t: int, sizes: np.ndarray, k: int) -> np.ndarray:
    """k ids for round `t`, every client alike."""
    return ops.sample_cohort(np.zeros(len(sizes)), k, rng=rng(seed, SAMPLING, t)).numpy()


def by_size(seed: int, t: int, sizes: np.ndarray, k: int) -> np.ndarray:
    """k ids for round `t`, proportional to the clients' sizes."""
    return ops.sample_cohort(np.log(sizes), k, rng=rng(seed, SAMPLING, t)).numpy()


def rested(seed: int, t: int, sizes: np.ndarray, k: int) -> np.ndarray:
    """k ids for round `t`, every client alike that has not trained in floor(M / 2k) rounds."""
    return _rested_cohorts(seed, len(sizes), k).cohort(t)


class _RestedCohorts:
    """All cohorts up to the last one asked for: each depends on those before."""

    def __init__(self, seed: int, clients: int, k: int) -> None:
        self.seed, self.clients, self.k = seed, clients, k
        self.cohorts: list[np.ndarray] = []
        self.last = np.full(clients, -clients)  # longer ago than anybody has to rest

    def cohort(self, t: int) -> np.ndarray:
        while len(self.cohorts) < t:
            self._draw(len(self.cohorts) + 1)
        return self.cohorts[t - 1]

    def _draw(self, t: int) -> None:
        waited = t - self.last
        chosen = ops.sample_cohort(
            np.zeros(self.clients),
            self.k,
            rng=rng(self.seed, SAMPLING, t),
            eligible=waited > rest_rounds(self.clients, self.k),
            rest=waited,
        ).numpy()
        self.last[chosen] = t
        self.cohorts.append(chosen)


_rested_cohorts = functools.lru_cache(maxsize=4)(_RestedCohorts)


def rest_rounds(clients: int, k: int) -> int:
    """How long a client rests that took part, where clients rest."""
    return clients // (2 * k)


def round_robin(seed: int, t: int, sizes: np.ndarray, k: int) -> np.ndarray:
    """k ids for round `t`: the next ones of an order that all clients stand in."""
    order = np.argsort(-rng(seed, SAMPLING, 1).gumbel(size=len(sizes)), kind="stable")
    return np.take(order, np.arange((t - 1) * k, t * k), mode="wrap")


def checked_cohort(
    chosen: ArrayLike, t: int, clients: int, k: int, *, repeated: bool = False
) -> np.ndarray:  # int64 [k]
    """A policy's answer in ascending order; ValueError unless it is k clients, different ones where
    they may not be `repeated`."""
    ids = np.asarray(chosen)
    if ids.dtype.kind not in "iu" or ids.shape != (k,):
        raise ValueError(
            f"sampler, round {t}: {k} client ids are needed, an integer array [{k}], got "
            f"{ids.dtype} {list(ids.shape)}"
        )
    ids = np.sort(ids.astype(np.int64))
    if ids[0] < 0 or ids[-1] >= clients:
        raise ValueError(
            f"sampler, round {t}: client ids must be in 0..{clients - 1}, got {ids.tolist()}"
        )
    if not repeated and (ids[1:] == ids[:-1]).any():
        raise ValueError(f"sampler, round {t}: the {k} clients must differ, got {ids.tolist()}")
    return ids


# What a user writes may keep state, if it is an object; `checked_cohort` looks at each answer.
Policy = Callable[[int, int, np.ndarray, int], np.ndarray]
POLICIES: dict[str, Policy] = {
    "uniform": uniform,
    "size": by_size,
    "rested": rested,
    "round-robin": round_robin,
}
