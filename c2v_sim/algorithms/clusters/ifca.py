"""IFCA: every client trains the one of several models that fits it best (Ghosh et al., 2020).

    round        c(i) = argmin_c  mean CE of w_c over client i's training samples
                 w_c = sum_{i: c(i) = c} p_i w_i,  p renormalised
    evaluation   of each client: w_c(i), chosen likewise

The models begin apart: the first is that of a plain run, to each tensor of the others noise of a
tenth of its standard deviation is added. Nothing is kept of the choices. A round costs a pass of
every model over the cohort's samples, an evaluation one over all training samples.
"""

from collections.abc import Sequence

import numpy as np
import torch

from c2v_sim.algorithms.clusters.in_clusters import InClusters
from c2v_sim.algorithms.fedavg import Algorithm
from c2v_sim.algorithms.run_parts import RunParts
from c2v_sim.data.partition import Partition
from c2v_sim.system.seeding import MODELS, rng
from c2v_sim.training.samplers.local_losses import local_losses

APART = 0.1  # of a tensor's standard deviation


class Ifca(InClusters):
    name = "ifca"

    def __init__(self, models: int, seed: int) -> None:
        super().__init__(Algorithm())
        self.models, self.seed = models, seed

    def start(self, run: RunParts) -> None:
        self.run = run
        self.form(np.zeros(run.clients, dtype=np.int64), self.models)
        for number, row in enumerate(run.server.data):
            draw = rng(self.seed, MODELS, number)
            for slot in run.layout.parameters if number else ():
                tensor = slot.view(row)
                noise = torch.from_numpy(draw.standard_normal(tuple(slot.shape), np.float32))
                tensor.add_(noise.to(run.device), alpha=APART * float(tensor.std(correction=0)))

    def choose(self, clients: Sequence[int]) -> None:
        """Each of `clients` takes the model that fits it best."""
        self.assigned[list(clients)] = self.best_for(self.run.federation.partition, clients)

    def best_for(self, partition: Partition, clients: Sequence[int]) -> np.ndarray:  # [n]
        """The model of the least loss on training samples, the first of two that tie."""
        data, lanes = self.run.train_data, self.run.lanes
        each = (local_losses(lanes, p.server, data, partition.train, clients) for p in self.parts)
        return np.stack(list(each)).argmin(axis=0)

    def place_new(self, clients: Sequence[int]) -> list[int] | None:
        held = self.run.federation.held_out
        return None if held is None else self.best_for(held, clients).tolist()

    def before_round(self, run: RunParts, t: int, clients: np.ndarray) -> None:
        self.choose(clients.tolist())
        super().before_round(run, t, clients)

    def before_test(self, clients: Sequence[int]) -> None:
        self.choose(clients)
