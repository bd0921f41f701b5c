"""Dropout that draws from a generator of its own, so that lanes cannot disturb one another.

torch's default generator is shared by all threads: two lanes that drop units from it would each
get a part of one stream, and the result would depend on their timing.
"""

import torch
from torch import Tensor, nn


class Dropout(nn.Module):
    """nn.Dropout with an explicit `generator`, which local training sets for each client."""

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0.0 <= p < 1.0:
            raise ValueError(f"dropout: p must be in [0, 1), got {p}")
        self.p = p
        self.generator: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        keep = torch.empty_like(x).bernoulli_(1.0 - self.p, generator=self.generator)
        return x * keep.mul_(1.0 / (1.0 - self.p))


class DropPath(Dropout):
    """Stochastic depth: a sample's residual branch is dropped as a whole, or scaled by 1/(1-p)."""

    def forward(self, x: Tensor) -> Tensor:  # [B, …] -> [B, …]
        if not self.training or self.p == 0.0:
            return x
        keep = x.new_empty(len(x), *[1] * (x.dim() - 1))
        keep.bernoulli_(1.0 - self.p, generator=self.generator)
        return x * keep.mul_(1.0 / (1.0 - self.p))


def use_own_generators(module: nn.Module) -> list[nn.Module]:
    """Replace every nn.Dropout inside by ours; all submodules that have a `generator`."""
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                setattr(parent, name, Dropout(child.p))
    return [m for m in module.modules() if hasattr(m, "generator")]
