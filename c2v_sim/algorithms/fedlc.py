"""FedLC: logits calibrated by how often the client sees each class.

    local loss CE( f_c - tau max(n_ic, 1e-8)^(-1/4), y )          n_ic: client i's samples of c

An absent class is offset by -100, that is, left out; a client of one class has a loss near 0.
Evaluation is not calibrated.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from c2v_sim.algorithms.fedavg import Algorithm, takes_padding
from c2v_sim.algorithms.run_parts import RunParts
from c2v_sim.training.local_client import LocalClient


@dataclass
class FedLC(Algorithm):
    tau: float = 1.0
    name = "fedlc"

    def start(self, run: RunParts) -> None:
        counts = run.federation.label_counts.double()  # [M, K]
        self.offsets = (self.tau * counts.clamp(min=1e-8) ** -0.25).float().to(run.device)

    def begin(self, client: LocalClient) -> None:
        client.memory("offset", self.offsets.shape[1]).copy_(self.offsets[client.id])

    @takes_padding
    def loss(self, client: LocalClient, x: Tensor, y: Tensor, z: Tensor, logits: Tensor) -> Tensor:
        return F.cross_entropy(logits - client.memory("offset"), y)
