"""SCAFFOLD: control variates against the clients' drift (Karimireddy et al., 2020, option II).

    local step    theta <- theta - lr (grad + c - c_i)
    client        c_i+ = c_i - c + (w - theta_i) / (lr a_i)
    server        w = sum_i p_i theta_i,   c = c + 1/M sum_i (c_i+ - c_i)       prior weights 1/k

c_i says where client i pulls, c where all pull; both are 0 in the beginning, and c is the mean of
all c_i. a_i is the number of local steps, with momentum what they add up to (`summed_steps`), so
that (w - theta_i) / (lr a_i) is a mean of the gradients in both cases; weight decay counts as a
part of the gradient. Batch-norm statistics are outside theta and c. Every client keeps a row, c_i.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from c2v_sim.algorithms.fedavg import Algorithm
from c2v_sim.algorithms.run_parts import RunParts
from c2v_sim.training.aggregation import average
from c2v_sim.training.arena import Arena
from c2v_sim.training.local_client import LocalClient
from c2v_sim.training.optimisers import Sgd, StepTerms


@dataclass
class Scaffold(Algorithm):
    name = "scaffold"

    def start(self, run: RunParts) -> None:
        self.run, self.trainable = run, run.layout.trainable
        self.c_i = run.client_rows("c_i", self.trainable)
        self.c = run.server_state("c", self.trainable)
        self.change = torch.zeros_like(self.c)  # of c, gathered within a round

    def begin(self, client: LocalClient) -> None:
        self.c_i.read(client.id, client.memory("linear", self.trainable)).neg_().add_(self.c)

    def step_terms(self, client: LocalClient) -> StepTerms:
        return {"linear": client.memory("linear")}

    def prior(self, sizes: Tensor) -> Tensor:
        return torch.ones_like(sizes)

    def finish(self, client: int, row: Tensor, origin: Tensor) -> None:
        steps = summed_steps(self.run, client)
        pull = (origin - row)[: self.trainable] / (steps * sgd_of(self.run).lr)
        before = self.c_i.read(client, torch.empty_like(self.c))
        after = self.c_i.write(client, before - self.c + pull)
        self.change.add_(after - before)  # of what is kept, which bfloat16 rounds

    def update(self, server: Arena, cohort: Arena, weights: Tensor) -> None:
        average(server, cohort, weights)
        self.c.add_(self.change, alpha=1 / len(self.run.own_sizes))
        self.change.zero_()


def summed_steps(run: RunParts, client: int) -> float:
    """|a_i|_1, how far a client goes along a constant gradient, in steps of lr.

    tau_i, its local steps, without momentum; with momentum rho each gradient goes on acting:

        |a_i|_1 = ( tau_i - rho (1 - rho^tau_i) / (1 - rho) ) / (1 - rho)
    """
    rho = sgd_of(run).momentum
    steps = run.local.epochs * len(run.batches(int(run.federation.partition.sizes[client])))
    return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)


def sgd_of(run: RunParts) -> Sgd:
    """The local optimiser, whose steps can be counted; TypeError where it is another."""
    optimiser = run.local.optimiser
    if not isinstance(optimiser, Sgd):
        raise TypeError(f"scaffold and fednova count steps of Sgd, got {optimiser}")
    return optimiser
