"""FedProx: a spring to the global model.

local loss CE + mu/2 |theta - w|^2
"""

from dataclasses import dataclass

from c2v_sim.algorithms.fedavg import Algorithm
from c2v_sim.training.local_client import LocalClient
from c2v_sim.training.optimisers import StepTerms


@dataclass
class FedProx(Algorithm):
    mu: float = 0.01
    name = "fedprox"

    def step_terms(self, client: LocalClient) -> StepTerms:
        return {"proximal": self.mu, "anchor": client.origin}
