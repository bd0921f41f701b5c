"""FedDyn: a linear term that remembers where each client pulls.

    a_i = a * mean(N) / N_i
    local loss CE + a_i <theta, h_i - w>, weight decay + a_i, gradient norm at most 10
    h_i = h_i + theta_i - w
    w = sum_i p_i theta_i + 1/M sum_{all i} h_i                        prior weights 1/k

which is CE + a_i <theta, h_i> + a_i/2 |theta - w|^2 up to a constant. The norm is clipped before
weight decay joins. h = 0 in the beginning. Batch-norm statistics are outside theta and h.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from c2v_sim.algorithms.fedavg import Algorithm
from c2v_sim.algorithms.run_parts import RunParts
from c2v_sim.training.aggregation import average
from c2v_sim.training.arena import Arena
from c2v_sim.training.local_client import LocalClient
from c2v_sim.training.optimisers import StepTerms


@dataclass
class FedDyn(Algorithm):
    alpha: float = 0.1  # a
    max_grad_norm: float = 10.0
    name = "feddyn"

    def start(self, run: RunParts) -> None:
        sizes = torch.from_numpy(run.federation.partition.sizes).double()
        mean = torch.from_numpy(run.own_sizes).double().mean()
        self.alphas = (self.alpha * mean / sizes).float().to(run.device)  # a_i, [M]
        self.members = len(run.own_sizes)
        self.trainable = run.layout.trainable
        self.h = run.client_rows("h", self.trainable)
        self.h_sum = run.server_state("h_sum", self.trainable)

    def begin(self, client: LocalClient) -> None:
        linear = self.h.read(client.id, client.memory("linear", self.trainable))
        linear.sub_(client.origin).mul_(self.alphas[client.id])
        client.memory("decay", 1).copy_(self.alphas[client.id])

    def step_terms(self, client: LocalClient) -> StepTerms:
        return {
            "linear": client.memory("linear"),
            "extra_decay": client.memory("decay"),
            "max_grad_norm": self.max_grad_norm,
        }

    def prior(self, sizes: Tensor) -> Tensor:
        return torch.ones_like(sizes)

    def finish(self, client: int, row: Tensor, origin: Tensor) -> None:
        before = self.h.read(client, torch.empty_like(self.h_sum))
        after = self.h.write(client, before + (row - origin)[: self.trainable])
        self.h_sum.add_(after - before)  # of what is kept, which bfloat16 rounds

    def update(self, server: Arena, cohort: Arena, weights: Tensor) -> None:
        average(server, cohort, weights)
        server.data[0, : self.trainable].add_(self.h_sum, alpha=1 / self.members)
