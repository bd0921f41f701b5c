"""Stage 6: who trains this round. A policy maps (seed, round, clients, k) to ascending ids.

Uniform sampling draws one Gumbel variate a client and takes the k largest: the same stream that
similarity-steered sampling adds its scores to, so both begin with the same cohort.
"""

import numpy as np

from c2v_sim import ops
from c2v_sim.seeding import SAMPLING, rng


def cohort_size(participation: float, clients: int) -> int:
    """Clients a round: floor(participation · clients), at least one."""
    return max(1, int(participation * clients + 1e-9))


def uniform(seed: int, round: int, clients: int, k: int) -> np.ndarray:
    """k of `clients` ids, uniform without replacement, ascending."""
    return ops.sample_cohort(np.zeros(clients), k, rng=rng(seed, SAMPLING, round)).numpy()
