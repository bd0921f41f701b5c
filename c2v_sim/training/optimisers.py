"""Local optimisers over a flat arena row: `start` for one participation, then a step a batch.

State is new for every participation, as the specification rules. Gradients have been accumulated
into the client's flat row by autograd; a step leaves them zero for the next batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim.adam import adam

from c2v_sim import ops
from c2v_sim.training.local_client import LocalClient

Step = Callable[[], None]


class Optimiser(Protocol):
    """What local training needs; a user's own fits in the same way."""

    def start(self, client: LocalClient, **terms: Any) -> Step: ...


@dataclass(frozen=True)
class Sgd:
    """torch.optim.SGD as one fused pass over the row, with an algorithm's terms in it."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    def start(self, client: LocalClient, extra_decay: float | Tensor = 0.0, **terms: Any) -> Step:
        """`extra_decay` adds to the weight decay (a [1] tensor where it differs by client); the
        other terms are those of ops.sgd_step_: linear, proximal, anchor, max_grad_norm."""
        velocity = None
        if self.momentum:
            velocity = client.memory("velocity", len(client.parameters)).zero_()
        decay = extra_decay + self.weight_decay
        if isinstance(decay, Tensor):  # at an address that a recorded step can rely on
            decay = client.memory("weight decay", 1).copy_(decay)

        def step() -> None:
            ops.sgd_step_(
                client.parameters,
                client.gradients,
                velocity,
                lr=self.lr,
                momentum=self.momentum,
                weight_decay=decay,
                zero_grads=True,
                **terms,
            )

        return step


@dataclass(frozen=True)
class Adam:
    """torch's own fused Adam on the row, which it sees as one parameter."""

    lr: float = 1e-3

    def start(self, client: LocalClient, **terms: Any) -> Step:
        if terms:
            raise ValueError(f"adam has no place for the terms {', '.join(terms)}; use SGD")
        # The state is the lane's memory, not torch.optim.Adam's own: a recorded step relies on it.
        size = len(client.parameters)
        mean, square = (client.memory(f"adam {m}", size).zero_() for m in ("mean", "square"))
        count = client.memory("adam count").zero_()

        def step() -> None:
            with torch.no_grad():
                adam(
                    [client.parameters],
                    [client.gradients],
                    [mean],
                    [square],
                    [],
                    [count],
                    fused=True,
                    lr=self.lr,
                    beta1=0.9,
                    beta2=0.999,
                    eps=1e-8,
                    weight_decay=0.0,
                    amsgrad=False,
                    maximize=False,
                )
            client.gradients.zero_()

        return step
