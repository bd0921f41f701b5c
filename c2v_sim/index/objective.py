"""What clients train DSA-IGN by in FEDERATED training."""

import torch
from torch import Tensor

from c2v_sim.index.dsa_ign import LOSSES, losses
from c2v_sim.training.local_client import LocalClient
from c2v_sim.training.optimisers import StepTerms


class IndexLoss:
    """The objective: the weighted sum of the four losses; `sums` [M, 4] adds each up by client."""

    name = "index network"
    capturable, plain_sgd, steps_per_batch = True, False, 1
    after_batch = end = staticmethod(lambda client: None)

    def __init__(self, weights: list[float], clients: int, device: torch.device) -> None:
        self.weights = torch.tensor(weights, device=device)
        self.sums = torch.zeros(clients, len(LOSSES), device=device)

    def begin(self, client: LocalClient) -> None:
        client.memory("id", 1).fill_(client.id)

    def step_terms(self, client: LocalClient) -> StepTerms:
        return {}

    def local_loss(self, client: LocalClient, d: Tensor, label: Tensor) -> Tensor:
        parts = losses(client.module, d, label)  # type: ignore[arg-type]
        own = client.memory("id").long()
        self.sums.index_add_(0, own, parts.detach().unsqueeze(0) * len(d))
        return parts @ self.weights
