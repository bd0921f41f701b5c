"""Ditto: beside the global model every client has one of its own, near to it (Li et al., 2021).

    w     as FedAvg
    v_i   local steps  v <- v - lr (grad CE(v) + lambda (v - w)),  w as the round began
    evaluation    of each client: v_i, where it has taken part, else w

Both are trained in a client's turn, v_i after w and on the same batches: a round costs twice. A row
of the model's size for every client.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from c2v_sim.algorithms.fedavg import Algorithm
from c2v_sim.algorithms.run_parts import RunParts
from c2v_sim.training.aggregation import average
from c2v_sim.training.arena import Arena
from c2v_sim.training.client_rows import ClientRows
from c2v_sim.training.local_client import LocalClient
from c2v_sim.training.optimisers import StepTerms


@dataclass
class Own(Algorithm):
    """How v_i is trained."""

    lambda_: float
    name = "ditto"

    def start(self, run: RunParts) -> None:
        self.rows = run.client_rows("own", run.layout.size)

    def begin(self, client: LocalClient) -> None:
        if client.id in self.rows:
            self.rows.read(client.id, client.row.data[0])

    def step_terms(self, client: LocalClient) -> StepTerms:
        return {"proximal": self.lambda_, "anchor": client.origin}


@dataclass
class Ditto(Algorithm):
    lambda_: float = 0.1
    name = "ditto"

    def start(self, run: RunParts) -> None:
        self.own = Own(self.lambda_)
        self.own.start(run)
        self.ends = Arena(run.layout, run.cohort_size, run.device)  # of the v_i of a cohort

    @property
    def second(self) -> tuple[Algorithm, Arena] | None:
        return self.own, self.ends

    @property
    def personal(self) -> ClientRows:
        return self.own.rows

    def before_round(self, run: RunParts, t: int, clients: np.ndarray) -> None:
        self.cohort = clients

    def personalise(self, client: int, row: Tensor) -> None:
        if client in self.own.rows:
            self.own.rows.read(client, row)

    def update(self, server: Arena, cohort: Arena, weights: Tensor) -> None:
        for client, row in zip(self.cohort.tolist(), self.ends.data, strict=False):
            self.own.rows.write(client, row)
        average(server, cohort, weights)
