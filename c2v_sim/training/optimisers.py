"""Local optimisers over a flat arena row: `start` for one participation, then a step per batch.

State is new for every participation, as the specification rules. Gradients have been accumulated
into the client's flat row by autograd; a step leaves them zero for the next batch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypedDict, Unpack

import torch
from torch import Tensor
from torch.optim.adam import adam

from c2v_sim import ops
from c2v_sim.training.local_client import LocalClient

Step = Callable[[], None]


class SgdTerms(TypedDict, total=False):
    """What an algorithm adds to the gradient in every step, as ops.sgd_step_ takes it."""

    linear: Tensor  # [trainable]
    proximal: float  # pull to the anchor
    anchor: Tensor  # [trainable]
    max_grad_norm: float


class StepTerms(SgdTerms, total=False):
    extra_decay: float | Tensor  # joins the weight decay; a [1] tensor where it differs by client


class Optimiser(Protocol):
    """What local training needs; a user's own fits in the same way."""

    def start(self, client: LocalClient, **terms: Unpack[StepTerms]) -> Step: ...


@dataclass(frozen=True)
class Sgd:
    """torch.optim.SGD as one fused pass over the row, with an algorithm's terms in it."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0

    def start(
        self,
        client: LocalClient,
        *,
        extra_decay: float | Tensor = 0.0,
        **terms: Unpack[SgdTerms],
    ) -> Step:
        velocity = None
        if self.momentum:
            size = (len(client.parameters),)
            velocity = client.owned_memory("optimiser", "velocity", size).zero_()
        decay = extra_decay + self.weight_decay
        if isinstance(decay, Tensor):  # at an address that a recorded step can rely on
            decay = client.owned_memory("optimiser", "weight decay", (1,)).copy_(decay)

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

    def start(self, client: LocalClient, **terms: Unpack[StepTerms]) -> Step:
        if terms:
            raise ValueError(f"adam has no place for the terms {', '.join(terms)}; use SGD")
        # The state is the lane's memory, not torch.optim.Adam's own: a recorded step relies on it.
        size = (len(client.parameters),)
        mean = client.owned_memory("optimiser", "mean", size).zero_()
        square = client.owned_memory("optimiser", "square", size).zero_()
        count = client.owned_memory("optimiser", "count", ()).zero_()

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
