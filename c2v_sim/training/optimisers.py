"""Local optimisers over a flat arena row: `start` for one participation, then a step per batch.

State is new for every participation, as the specification rules. Gradients have been accumulated
into the client's flat row by autograd; a step leaves them zero for the next batch.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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

    def velocity(self, client: LocalClient) -> Tensor | None:  # [trainable]
        """The momentum's memory, zero."""
        if not self.momentum:
            return None
        size = (len(client.parameters),)
        return client.owned_memory("optimiser", "velocity", size).zero_()

    def start(
        self,
        client: LocalClient,
        *,
        extra_decay: float | Tensor = 0.0,
        **terms: Unpack[SgdTerms],
    ) -> Step:
        velocity = self.velocity(client)
        decay, options = extra_decay + self.weight_decay, None
        if isinstance(decay, Tensor):  # once, and at an address that a recorded step can rely on
            made = ops.sgd_options(
                client.parameters,
                lr=self.lr,
                momentum=self.momentum,
                weight_decay=decay,
                proximal=terms.get("proximal", 0.0),
                max_grad_norm=terms.get("max_grad_norm"),
            )
            options = client.owned_memory("optimiser", "options", (1, 5)).copy_(made)

        def step() -> None:
            ops.sgd_step_(
                client.parameters,
                client.gradients,
                velocity,
                lr=self.lr,
                momentum=self.momentum,
                weight_decay=decay,
                options=options,
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
            adam_step(client.parameters, client.gradients, mean, square, count, self.lr)

        return step


def adam_step(p: Tensor, g: Tensor, mean: Tensor, square: Tensor, count: Tensor, lr: float) -> None:
    """torch's fused Adam on one row [P] with its count [], or on rows [k, P] with counts [k], all
    in place; the gradients are zero afterwards."""

    def rows(t: Tensor) -> list[Tensor]:
        return [t] if count.dim() == 0 else list(t)

    with torch.no_grad():
        adam(
            rows(p),
            rows(g),
            rows(mean),
            rows(square),
            [],
            rows(count),
            fused=True,
            lr=lr,
            beta1=0.9,
            beta2=0.999,
            eps=1e-8,
            weight_decay=0.0,
            amsgrad=False,
            maximize=False,
        )
        g.zero_()


@dataclass(frozen=True)
class OfTorch:
    """Any optimiser of torch's kind, made anew for each participation by `make(parameters)`.

    It steps through the parameters one by one, in Python: slower than the passes above.
    """

    make: Callable[[list[Tensor]], torch.optim.Optimizer]
    name: str  # of its class
    capturable = False  # training/cuda_lane.py does not record its steps

    def start(self, client: LocalClient, **terms: Unpack[StepTerms]) -> Step:
        optimiser = self.make([p for p in client.module.parameters() if p.requires_grad])

        def step() -> None:
            add_terms(client.parameters, client.gradients, **terms)
            optimiser.step()
            client.gradients.zero_()

        return step


def add_terms(
    p: Tensor,
    g: Tensor,
    *,
    linear: Tensor | None = None,
    proximal: float = 0.0,
    anchor: Tensor | None = None,
    max_grad_norm: float | None = None,
    extra_decay: float | Tensor = 0.0,
) -> None:  # [trainable], [trainable]
    """An algorithm's terms into the gradient g, as ops.sgd_step_ defines them."""
    if linear is not None:
        g.add_(linear)
    if anchor is not None:
        g.add_(p - anchor, alpha=proximal)
    if max_grad_norm is not None:
        g.mul_((max_grad_norm / (torch.linalg.vector_norm(g) + 1e-6)).clamp(max=1.0))
    if isinstance(extra_decay, Tensor) or extra_decay:
        g.add_(p * extra_decay)


def of_torch(
    make: Callable[..., torch.optim.Optimizer], *, lr: float, momentum: float, weight_decay: float
) -> OfTorch:
    """A class of torch.optim with these settings, or a function that makes one of a list of
    parameters and has settings of its own."""
    if isinstance(make, type):
        known = inspect.signature(make).parameters
        if momentum and "momentum" not in known:
            raise ValueError(
                f"momentum = {momentum} has no effect on {make.__name__}: leave it out"
            )
        settings = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        make = partial(make, **{k: v for k, v in settings.items() if k in known})
    trial = make([torch.zeros(1, requires_grad=True)])  # also loads what torch.optim loads late
    name = type(trial).__name__
    if not callable(getattr(trial, "step", None)):
        raise TypeError(f"optimizer must make a torch.optim.Optimizer, got {name}")
    closure = inspect.signature(trial.step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise ValueError(f"optimizer {name} asks for a closure, which local training has not")
    return OfTorch(make, name)
