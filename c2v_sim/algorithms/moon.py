"""MOON: representations like the global model's, unlike the client's own last ones.

    r = head(features(x)),  head = Linear(d, d) - ReLU - Linear(d, 256), and g: Linear(256, K)
    local loss CE + mu CE_2( [cos(r, r_global), cos(r, r_previous)] / T, target 0 )

Global and previous model are in eval mode and take no gradient. A client without a previous model
has no second term: with the global model in its place the term is the constant log 2.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from c2v_sim.algorithms.fedavg import Algorithm, takes_padding
from c2v_sim.algorithms.run_parts import RunParts
from c2v_sim.training.local_client import LocalClient
from c2v_sim.training.local_training import PADDING

REPRESENTATION = 256


class WithHead(nn.Module):
    """A model whose features pass a projection head; the copy of `base` loses its classifier."""

    def __init__(self, base: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        own = base.classifier
        for parent in list(base.modules()):
            for name, child in parent.named_children():
                if child is own:
                    setattr(parent, name, nn.Identity())
        self.base = base
        self.head = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, REPRESENTATION)
        )
        self.classifier = nn.Linear(REPRESENTATION, classes)

    def features(self, x: Tensor) -> Tensor:  # [B, …] -> r [B, 256]
        return self.head(self.base.features(x))  # type: ignore[operator]


@dataclass
class Moon(Algorithm):
    mu: float = 0.1
    temperature: float = 0.5
    name = "moon"

    def adapt_model(self, model: nn.Module, width: int, classes: int) -> nn.Module:
        return WithHead(model, width, classes)

    def start(self, run: RunParts) -> None:
        self.size = run.layout.size
        self.integers = run.server.integers[0]  # of no use to a model in eval mode
        self.previous = run.client_rows("previous", self.size)

    def begin(self, client: LocalClient) -> None:
        client.variant = client.id in self.previous
        if client.variant:
            row = self.previous.read(client.id, client.memory("previous", self.size))
            client.twin("previous").bind(row, self.integers)
            client.twin("global").bind(client.server.data[0], self.integers)

    @takes_padding
    def loss(self, client: LocalClient, x: Tensor, y: Tensor, z: Tensor, logits: Tensor) -> Tensor:
        loss = F.cross_entropy(logits, y)
        if not client.variant:
            return loss
        with torch.no_grad():
            of_global, of_previous = (
                client.twin(name).module.features(x)  # type: ignore[operator]
                for name in ("global", "previous")
            )
        first = torch.where(y == PADDING, PADDING, 0)
        return loss + self.mu * contrast(z, of_global, of_previous, self.temperature, first)

    def finish(self, client: int, row: Tensor, origin: Tensor) -> None:
        self.previous.write(client, row)


def contrast(
    r: Tensor, r_global: Tensor, r_previous: Tensor, temperature: float, first: Tensor
) -> Tensor:
    """Mean cross-entropy of choosing the global model's representation, each [B, R]; `first` [B] is
    0, the choice, or PADDING."""
    choices = torch.stack([cosine(r, r_global), cosine(r, r_previous)], dim=1) / temperature
    return F.cross_entropy(choices, first)


def cosine(a: Tensor, b: Tensor) -> Tensor:  # 2 × [B, R] -> [B]
    """Row by row; 0 with no gradient where a row is zero."""
    lengths = torch.linalg.vector_norm(a, dim=1) * torch.linalg.vector_norm(b, dim=1)
    return torch.where(lengths == 0, 0.0, (a * b).sum(1) / lengths.clamp(min=1e-8))
