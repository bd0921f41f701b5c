"""Local optimisers over a flat arena row: `start` for one participation, then a step a batch.

State is new for every participation, as the specification rules. Gradients have been accumulated
into the flat row `gradients` by autograd; a step leaves them zero for the next batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from c2v_sim import ops

Step = Callable[[], None]
Buffer = Callable[[str], Tensor]  # name -> a zeroed row of the lane's own, [trainable]


class Optimiser(Protocol):
    """What local training needs; a user's own fits in the same way."""

    def start(self, parameters: Tensor, gradients: Tensor, buffer: Buffer) -> Step: ...


@dataclass(frozen=True)
class Sgd:
    """torch.optim.SGD as one fused pass over the row."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    def start(self, parameters: Tensor, gradients: Tensor, buffer: Buffer) -> Step:
        velocity = buffer("velocity") if self.momentum else None

        def step() -> None:
            ops.sgd_step_(
                parameters,
                gradients,
                velocity,
                lr=self.lr,
                momentum=self.momentum,
                weight_decay=self.weight_decay,
                zero_grads=True,
            )

        return step


@dataclass(frozen=True)
class Adam:
    """torch's own fused Adam on the row, which it sees as one parameter."""

    lr: float = 1e-3

    def start(self, parameters: Tensor, gradients: Tensor, buffer: Buffer) -> Step:
        row = nn.Parameter(parameters)  # the same memory
        row.grad = gradients
        adam = torch.optim.Adam([row], lr=self.lr, fused=True)

        def step() -> None:
            adam.step()
            gradients.zero_()

        return step
