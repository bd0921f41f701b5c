"""FedProto: clients share what their classes look like, and no model (Tan et al., 2022).

    C_i^k = mean of the features of client i's samples of class k, by its model as a turn ended
    C^k   = sum_i N_ik C_i^k / sum_i N_ik          over the cohort; where nobody has k, as it was
    local start   the client's own model of its last turn, at first that of everybody
    local loss    CE + lambda mean over batch and columns of (z - C^y)^2; 0 where y has no C yet
    evaluation    of each client: its own model

The mean over columns is that of the authors' code. There is no global model: what a run calls so is
the model that everybody begins with, and stays as it is. So nothing is said of its accuracy, and a
client that never trains has no model. A row of the model's size for every client.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from c2v_sim.algorithms.fedavg import Algorithm
from c2v_sim.algorithms.personal.mixture import check_features
from c2v_sim.algorithms.run_parts import RunParts
from c2v_sim.training.arena import Arena
from c2v_sim.training.client_rows import ClientRows
from c2v_sim.training.lane import Lane
from c2v_sim.training.local_client import LocalClient


@dataclass
class FedProto(Algorithm):
    lambda_: float = 1.0
    name = "fedproto"

    def adapt_model(self, model: nn.Module, width: int, classes: int) -> nn.Module:
        self.shape = classes, width
        return model

    def start(self, run: RunParts) -> None:
        check_features(run, self.name)
        self.run = run
        self.own = run.client_rows("own", run.layout.size)
        self.prototypes = run.server_state("prototypes", *self.shape)  # C, [K, d]
        self.known = run.server_state("known", self.shape[0])  # 1 where there is one

    @property
    def personal(self) -> ClientRows:
        return self.own

    @property
    def shares_model(self) -> bool:
        return False

    def before_round(self, run: RunParts, t: int, clients: np.ndarray) -> None:
        self.cohort = clients.tolist()

    def begin(self, client: LocalClient) -> None:
        self.personalise(client.id, client.row.data[0])

    def loss(self, client: LocalClient, x: Tensor, y: Tensor, z: Tensor, logits: Tensor) -> Tensor:
        squares = (z - self.prototypes[y]).square().mean(1)  # [B]
        return F.cross_entropy(logits, y) + self.lambda_ * (self.known[y] * squares).mean()

    def personalise(self, client: int, row: Tensor) -> None:
        if client in self.own:
            self.own.read(client, row)

    def finish(self, client: int, row: Tensor, origin: Tensor) -> None:
        self.own.write(client, row)

    def update(self, server: Arena, cohort: Arena, weights: Tensor) -> None:
        sums = self.run.of_each(
            self.cohort, lambda lane, i: self.summed(lane, cohort, i), *self.shape
        )
        train = self.run.federation.partition.train
        classes = self.run.federation.dataset.y_train[
            np.concatenate([train[i] for i in self.cohort])
        ]
        counts = torch.bincount(classes, minlength=self.shape[0]).to(self.known)
        seen = counts > 0
        means = sums.sum(0) / counts.clamp(min=1).unsqueeze(1)  # in the order of the clients
        self.prototypes.copy_(torch.where(seen.unsqueeze(1), means, self.prototypes))
        self.known.copy_(seen | self.known.bool())

    def summed(self, lane: Lane, cohort: Arena, position: int) -> Tensor:  # [K, d]
        """The features of a client's samples, added up by class."""
        ids = lane.upload(self.run.federation.partition.train[self.cohort[position]])
        lane.client.model.bind(cohort.data[position], cohort.integers[position])
        module = lane.client.module.eval()
        out = torch.zeros(self.shape, device=self.run.device)
        with torch.no_grad():
            for part in ids.split(self.run.local.batch_size):
                x, y = self.run.train_data.batch(part)
                onehot = F.one_hot(y, self.shape[0]).to(out)
                out += onehot.T @ module.features(x)  # type: ignore[operator]
        return out
