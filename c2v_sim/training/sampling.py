"""Stage 6: who trains this round. A policy maps (seed, round, sizes [M], k) to k client ids.

Each client draws one Gumbel variate and the k largest keys are taken: the same stream that
similarity-steered sampling adds its scores to, so all begin alike.

    uniform   key_i = g_i
    size      key_i = log N_i + g_i        without replacement, proportional to N_i
"""

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


def checked_cohort(chosen: ArrayLike, t: int, clients: int, k: int) -> np.ndarray:  # int64 [k]
    """A policy's answer in ascending order; ValueError unless it is k different clients."""
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
    if (ids[1:] == ids[:-1]).any():
        raise ValueError(f"sampler, round {t}: the {k} clients must differ, got {ids.tolist()}")
    return ids


# What a user writes may keep state, if it is an object; `checked_cohort` looks at each answer.
Policy = Callable[[int, int, np.ndarray, int], np.ndarray]
SAMPLERS: dict[str, Policy] = {"uniform": uniform, "size": by_size}
