"""Stage 6: who trains this round. A policy maps (seed, round, sizes, k) to ascending ids.

Each client draws one Gumbel variate and the k largest keys are taken: the same stream that
similarity-steered sampling adds its scores to, so all begin alike.

    uniform   key_i = g_i
    size      key_i = log N_i + g_i        without replacement, proportional to N_i
"""

from collections.abc import Callable

import numpy as np

from c2v_sim import ops
from c2v_sim.seeding import SAMPLING, rng


def cohort_size(participation: float, clients: int) -> int:
    """Clients a round: floor(participation · clients), at least one."""
    return max(1, int(participation * clients + 1e-9))


def uniform(seed: int, round: int, sizes: np.ndarray, k: int) -> np.ndarray:
    """k ids, every client alike."""
    return ops.sample_cohort(np.zeros(len(sizes)), k, rng=rng(seed, SAMPLING, round)).numpy()


def by_size(seed: int, round: int, sizes: np.ndarray, k: int) -> np.ndarray:
    """k ids, proportional to the clients' sizes."""
    return ops.sample_cohort(np.log(sizes), k, rng=rng(seed, SAMPLING, round)).numpy()


Policy = Callable[[int, int, np.ndarray, int], np.ndarray]
SAMPLERS: dict[str, Policy] = {"uniform": uniform, "size": by_size}
