"""A cohort from all clusters: from each as many clients as its share of all clients says.

Clients stand in a line, cluster after cluster, in a new order within their clusters in every round.
With a random begin, every M/k-th of them takes part:

    positions  floor(u + j M / k),  j = 0 … k - 1,  u uniform in [0, M / k)

Everybody takes part with probability k / M, as in uniform sampling, but a cluster of m clients has
k m / M of the places up to rounding, in every round.
"""

from collections.abc import Callable

import numpy as np

from c2v_sim.system.seeding import SAMPLING, rng
from c2v_sim.training.samplers.sampler import Sampler


class EvenlyFromClusters(Sampler):
    """`clusters`: says, when asked, which cluster each client is in, [M]."""

    def __init__(self, clusters: Callable[[], np.ndarray]) -> None:
        self.clusters = clusters

    def __call__(self, seed: int, t: int, sizes: np.ndarray, k: int) -> np.ndarray:
        draw, step = rng(seed, SAMPLING, t), len(sizes) / k
        line = np.lexsort((draw.random(len(sizes)), self.clusters()))
        positions = (draw.random() * step + step * np.arange(k)).astype(np.int64)
        return np.sort(line[np.minimum(positions, len(sizes) - 1)])
