"""FedAvg, and the hooks by which every other algorithm differs from it.

    local loss CE(f(x), y);  w = sum_i p_i w_i

In a round the loop calls, in this order:

    before_round   once, with the cohort's ids
    begin          for each client, when it has taken a lane's seat
    step_terms     for each client: what the fused optimiser step adds to the gradient
    loss           for each batch
    finish         for each client in ascending order, after the whole cohort has trained
    update         once: the trained rows become the global row

Only `finish` and `update` change what lasts from round to round, so a round that is interrupted
while clients train leaves no trace. `begin` and `loss` run on the lanes' threads, at the same time
for several clients: they may write to `client`, not to `self`. Tensors that last are asked of the
run in `start` (run.server_state, run.client_rows) and changed in place; the run saves them.

On a GPU a step is recorded once and replayed for all clients, so what `loss` needs of the client
at hand is put by `begin` into `client.memory`; a number or an id of Python's would be that of the
client whose step was recorded. `client.variant` tells apart steps that differ in kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from c2v_sim.training.aggregation import average
from c2v_sim.training.arena import Arena
from c2v_sim.training.local_client import LocalClient

if TYPE_CHECKING:
    from c2v_sim.algorithms.local_regulariser import LocalRegulariser
    from c2v_sim.simulator.simulator import Simulator


class Algorithm:
    """FedAvg. Another algorithm overrides the hooks in which it differs."""

    name = "fedavg"
    regulariser: LocalRegulariser | None = None  # case study iii, set by the run
    capturable = (
        True  # False: on a GPU a step cannot be recorded and replayed (training/cuda_lane.py)
    )

    def adapt_model(self, model: nn.Module, width: int, classes: int) -> nn.Module:
        """The model that is trained; `width` is that of z = model.features(x)."""
        return model

    def start(self, run: Simulator) -> None:
        """Once before the first round: take from the run what the algorithm needs."""

    def before_round(self, run: Simulator, round: int, clients: np.ndarray) -> None:
        """Once a round before local training; may only prepare what this round needs."""

    def begin(self, client: LocalClient) -> None:
        """The client is about to train; `client.memory` is the place for what `loss` needs."""

    def step_terms(self, client: LocalClient) -> dict[str, Any]:
        """Terms of ops.sgd_step_: linear, proximal and anchor, max_grad_norm; extra_decay."""
        return {}

    def local_loss(self, client: LocalClient, x: Tensor, y: Tensor) -> Tensor:
        """The whole loss of a batch: the algorithm's, and the regulariser's where there is one."""
        module: Any = client.module
        z = module.features(x)
        logits = module.classifier(z)
        loss = self.loss(client, x, y, z, logits)
        if self.regulariser is not None:
            loss = loss + self.regulariser(module, z, logits)
        return loss

    def loss(self, client: LocalClient, x: Tensor, y: Tensor, z: Tensor, logits: Tensor) -> Tensor:
        """The algorithm's loss of a batch, z = features(x) [B, d], logits [B, K]."""
        return F.cross_entropy(logits, y)

    def prior(self, sizes: Tensor) -> Tensor:  # [k] -> [k]
        """What the weights of the cohort are proportional to before any index: N_i."""
        return sizes

    def finish(self, client: int, row: Tensor, origin: Tensor) -> None:
        """`client` ended at `row` [size], having begun at `origin` [size]: keep what lasts."""

    def update(self, server: Arena, cohort: Arena, weights: Tensor) -> None:
        """Replace server row 0 by the new global model; weights p [k] sum to 1."""
        average(server, cohort, weights)
