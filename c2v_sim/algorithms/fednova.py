"""FedNova: clients that make more steps do not count more (Wang et al., 2020).

    d_i = (w - theta_i) / |a_i|_1                       a client's movement per local step
    w = w - tau sum_i p_i d_i,   tau = sum_i p_i |a_i|_1

|a_i|_1 is the number of local steps, with local momentum what they add up to (`summed_steps` in
algorithms/scaffold.py). Where all clients make equally many steps this is FedAvg. Batch-norm
statistics are averaged with p.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from c2v_sim.algorithms.fedavg import Algorithm, only_averages
from c2v_sim.algorithms.run_parts import RunParts
from c2v_sim.algorithms.scaffold import summed_steps
from c2v_sim.training.aggregation import average
from c2v_sim.training.arena import Arena


@dataclass
class FedNova(Algorithm):
    name = "fednova"

    def before_round(self, run: RunParts, t: int, clients: np.ndarray) -> None:
        steps = [summed_steps(run, client) for client in clients.tolist()]
        self.steps = torch.tensor(steps, dtype=torch.float64)  # |a_i|_1, [k]

    @only_averages
    def update(self, server: Arena, cohort: Arena, weights: Tensor) -> None:
        parts = (weights * self.steps).sum() * weights / self.steps  # tau p_i / |a_i|_1
        whole = parts.sum()
        parameters = server.data[0, : server.layout.trainable]
        before = parameters.clone()
        average(server, cohort, parts / whole)
        after = before + float(whole) * (parameters - before)
        if server.layout.buffers:
            average(server, cohort, weights)
        parameters.copy_(after)
