"""DivFL: the cohort whose updates stand for everybody's (Balakrishnan et al., 2022).

    D_ij = |u_i - u_j|, of the clients' last updates (samplers/last_updates.py)
    cohort S: greedily, k times, the client that makes  sum_j min_{i in S} D_ij  smallest

which is facility location, a submodular function that greed maximises up to a factor of 1 - 1/e.
Ties are broken by the round's noise. The paper first asks every client for a gradient; here those
that have not taken part yet come first, in the order of the noise, so that the first cohorts cost
nothing and the first is the uniform one. The weights are the algorithm's, as in the authors' code.
A round takes O(k M^2); state: last_updates.py.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from c2v_sim.system.seeding import SAMPLING, rng
from c2v_sim.training.samplers.last_updates import LastUpdates, distance
from c2v_sim.training.samplers.sampler import Sampler, SamplerRun


@dataclass
class DivFL(Sampler):
    sketch: int = 0
    seed: int = 0

    def start(self, run: SamplerRun) -> None:
        self.updates = LastUpdates(run, distance, self.sketch, self.seed)

    def __call__(self, seed: int, t: int, sizes: np.ndarray, k: int) -> np.ndarray:
        order = np.argsort(-rng(seed, SAMPLING, t).gumbel(size=len(sizes)), kind="stable")
        known = self.updates.known[order]
        new, old = order[~known][:k], order[known]
        if len(new) == k:
            return new
        distances = self.updates.table.double().cpu().numpy()[np.ix_(old, old)]
        return np.concatenate([new, old[representatives(distances, k - len(new))]])

    def finish_rows(self, clients: np.ndarray, rows: Tensor, origin: Tensor) -> None:
        self.updates.keep(clients, rows, origin)


def representatives(distances: np.ndarray, k: int) -> np.ndarray:  # [n, n] -> [k]
    """Positions that stand for all, greedily; the first among equals."""
    nearest = np.full(len(distances), np.inf)  # of each, among those chosen
    chosen: list[int] = []
    for _ in range(k):
        left = np.minimum(distances, nearest).sum(1)
        left[chosen] = np.inf
        chosen.append(int(left.argmin()))
        nearest = np.minimum(nearest, distances[chosen[-1]])
    return np.array(chosen)
