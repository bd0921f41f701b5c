"""pFedMe: a client's own model is drawn to its copy of the global one, and draws that after itself
(T. Dinh et al., 2020).

    F_i(w) = min_theta  f_i(theta) + lambda/2 |theta - w|^2           the Moreau envelope of f_i

    local start   theta = w_i = w
    on a batch    K steps  theta <- theta - lr (grad CE(theta) + lambda (theta - w_i)),  then
                  w_i <- w_i - eta lambda (w_i - theta)               lambda (w - theta) = grad F_i
    server        w = (1 - beta) w + beta sum_i p_i w_i
    evaluation    of each client: theta_i as its last turn ended, where it has taken part, else w

As in the authors' code theta goes on from batch to batch, and clients count by their samples. Only
the cohort trains. Batch-norm statistics are those that theta saw, and are averaged. A step costs K
times; a row of the model's size for every client.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from c2v_sim.algorithms.fedavg import Algorithm
from c2v_sim.algorithms.run_parts import RunParts
from c2v_sim.system import ranks
from c2v_sim.training.aggregation import average
from c2v_sim.training.arena import Arena
from c2v_sim.training.client_rows import ClientRows
from c2v_sim.training.cohort import dealt
from c2v_sim.training.local_client import LocalClient
from c2v_sim.training.optimisers import StepTerms


@dataclass
class PFedMe(Algorithm):
    lambda_: float = 15.0
    steps_per_batch: int = 5  # K
    eta: float = 0.005
    beta: float = 1.0
    name = "pfedme"

    def start(self, run: RunParts) -> None:
        self.trainable = run.layout.trainable
        self.own = run.client_rows("own", run.layout.size)
        self.ends = Arena(run.layout, run.cohort_size, run.device)  # the theta_i of a cohort

    @property
    def personal(self) -> ClientRows:
        return self.own

    def before_round(self, run: RunParts, t: int, clients: np.ndarray) -> None:
        self.cohort = clients.tolist()
        self.trainers = dealt([len(run.federation.partition.train[i]) for i in self.cohort])

    def begin(self, client: LocalClient) -> None:
        client.memory("w", self.trainable).copy_(client.origin)

    def step_terms(self, client: LocalClient) -> StepTerms:
        return {"proximal": self.lambda_, "anchor": client.memory("w")}

    def after_batch(self, client: LocalClient) -> None:
        with torch.no_grad():
            client.memory("w").lerp_(client.parameters, self.eta * self.lambda_)

    def end(self, client: LocalClient) -> None:
        self.ends.data[self.cohort.index(client.id)].copy_(client.row.data[0])
        client.row.data[0, : self.trainable].copy_(client.memory("w"))

    def personalise(self, client: int, row: Tensor) -> None:
        if client in self.own:
            self.own.read(client, row)

    def update(self, server: Arena, cohort: Arena, weights: Tensor) -> None:
        ranks.share(*zip(self.ends.data, self.trainers, strict=False))
        for client, row in zip(self.cohort, self.ends.data, strict=False):
            self.own.write(client, row)
        old = server.data[0, : self.trainable].clone()
        average(server, cohort, weights)
        server.data[0, : self.trainable].lerp_(old, 1 - self.beta)
