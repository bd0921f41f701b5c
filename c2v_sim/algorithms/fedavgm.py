"""FedAvgM: momentum on the server.

    Delta = w - sum_i p_i w_i,   v = b v + Delta,   w = w - v          v = 0 in the beginning

Batch-norm statistics get no momentum: they are the cohort's average.
"""

from dataclasses import dataclass

from torch import Tensor

from c2v_sim.algorithms.fedavg import Algorithm, averages_as_given
from c2v_sim.algorithms.run_parts import RunParts
from c2v_sim.training.aggregation import average
from c2v_sim.training.arena import Arena


@dataclass
class FedAvgM(Algorithm):
    momentum: float = 0.1  # b
    name = "fedavgm"

    def start(self, run: RunParts) -> None:
        self.velocity = run.server_state("velocity", run.layout.trainable)

    @averages_as_given
    def update(self, server: Arena, cohort: Arena, weights: Tensor) -> None:
        parameters = server.data[0, : len(self.velocity)]
        before = parameters.clone()
        average(server, cohort, weights)
        self.velocity.mul_(self.momentum).add_(before - parameters)
        parameters.copy_(before - self.velocity)
