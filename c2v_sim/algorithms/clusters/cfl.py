"""CFL: a cluster is divided where its clients pull apart (Sattler et al., 2020).

    u_i = theta_i - w_c(i) of client i's last turn
    cluster c is divided when   |sum_i N_i u_i / N_c| < ratio · max_i |u_i|   over its clients i

into the two groups of complete linkage by the angles between the u_i, as in the authors' code. Both
go on from w_c. FedAvg within clusters, all clients in one in the beginning. The paper has everybody
take part in every round; here a cluster is looked at when all of its clients have taken part since
it was made. Every client keeps a row, u_i or a sketch of it (training/samplers/last_updates.py).
"""

import numpy as np
import torch
from torch import Tensor

from c2v_sim.algorithms.clusters.in_clusters import InClusters
from c2v_sim.algorithms.fedavg import Algorithm
from c2v_sim.algorithms.run_parts import RunParts
from c2v_sim.training.arena import Arena
from c2v_sim.training.samplers.last_updates import LastUpdates, angle


class Cfl(InClusters):
    name = "cfl"

    def __init__(self, most: int, ratio: float, sketch: int, seed: int) -> None:
        super().__init__(Algorithm())
        self.most, self.ratio, self.sketch, self.seed = most, ratio, sketch, seed

    def start(self, run: RunParts) -> None:
        self.run = run
        self.form(np.zeros(run.clients, dtype=np.int64), self.most)
        self.updates = LastUpdates(run, angle, self.sketch, self.seed, owner="cfl")
        self.of = run.server_state("cfl.cluster", run.clients)  # of each client
        self.fresh = run.server_state("cfl.fresh", run.clients)  # 1: took part since it was made

    @property
    def count(self) -> int:
        return int(self.of.max()) + 1

    def cluster_of(self, client: int) -> int:
        return int(self.of[client])

    def update(self, server: Arena, cohort: Arena, weights: Tensor) -> None:
        for number in np.unique(self.trained).tolist():
            at = np.flatnonzero(self.trained == number)
            rows, origin = cohort.data[torch.from_numpy(at)], self.parts[number].server.data[0]
            self.updates.keep(self.cohort[at], rows, origin)
        self.fresh[torch.from_numpy(self.cohort)] = 1.0
        super().update(server, cohort, weights)
        for number in range(self.count):
            self._divide(number)

    def _divide(self, number: int) -> None:
        """Divide the cluster, where it is due."""
        members, new = np.flatnonzero(self.of.cpu().numpy() == number), self.count
        ids = torch.from_numpy(members)
        if new == self.most or len(members) < 2 or not bool(self.fresh[ids].all()):
            return
        if self._pull(members) >= self.ratio:
            return
        second = halves(self.updates.table[ids][:, ids].cpu().numpy())
        self.of[ids[torch.from_numpy(second)]] = new
        self.fresh[ids] = 0.0
        for rows in (self.run.server.data, self.run.server.integers):
            rows[new] = rows[number]

    def _pull(self, members: np.ndarray) -> float:
        """The length of the mean update over that of the longest."""
        sizes = self.run.federation.partition.sizes[members]
        total = torch.zeros(self.updates.width, dtype=torch.float64)
        row, longest = torch.empty(self.updates.width, device=self.run.device), 0.0
        for client, size in zip(members.tolist(), sizes.tolist(), strict=True):
            own = self.updates.rows.read(client, row).cpu().double()
            total.add_(own, alpha=size / int(sizes.sum()))
            longest = max(longest, float(own.norm()))
        return float(total.norm()) / longest if longest else 1.0


def halves(angles: np.ndarray) -> np.ndarray:  # [n, n] -> bool [n]
    """Who is in the group without the first one."""
    from sklearn.cluster import AgglomerativeClustering  # slow to import

    linkage = AgglomerativeClustering(n_clusters=2, metric="precomputed", linkage="complete")
    found = linkage.fit_predict(angles)
    return found != found[0]
