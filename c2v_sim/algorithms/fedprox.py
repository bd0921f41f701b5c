"""FedProx: a spring to the global model.

local loss CE + mu/2 |theta - w|^2
"""

from dataclasses import dataclass
from typing import Any

from c2v_sim.algorithms.fedavg import Algorithm
from c2v_sim.training.local_client import LocalClient


@dataclass
class FedProx(Algorithm):
    mu: float = 0.01
    name = "fedprox"

    def step_terms(self, client: LocalClient) -> dict[str, Any]:
        return {"proximal": self.mu, "anchor": client.origin}
