"""An algorithm around another: every hook is that of `inner`, until it is overridden."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor, nn

from c2v_sim.algorithms.fedavg import Algorithm, check_trains_by_loss
from c2v_sim.algorithms.run_parts import RunParts
from c2v_sim.training.arena import Arena
from c2v_sim.training.local_client import LocalClient
from c2v_sim.training.optimisers import StepTerms


class Around(Algorithm):
    def __init__(self, inner: Algorithm) -> None:
        check_trains_by_loss(inner, "personal classifiers are trained by")
        self.inner = inner

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.inner.name

    @property
    def capturable(self) -> bool:  # type: ignore[override]
        return self.inner.capturable

    @property
    def steps_per_batch(self) -> int:  # type: ignore[override]
        return self.inner.steps_per_batch

    @property
    def shares_model(self) -> bool:
        return self.inner.shares_model

    @property
    def plain_sgd(self) -> bool:
        return self.inner.plain_sgd

    @property
    def leaves_out_padding(self) -> bool:
        return self.inner.leaves_out_padding

    def adapt_model(self, model: nn.Module, width: int, classes: int) -> nn.Module:
        return self.inner.adapt_model(model, width, classes)

    def start(self, run: RunParts) -> None:
        self.inner.start(run)

    def before_round(self, run: RunParts, t: int, clients: np.ndarray) -> None:
        self.inner.before_round(run, t, clients)

    def begin(self, client: LocalClient) -> None:
        self.inner.begin(client)

    def step_terms(self, client: LocalClient) -> StepTerms:
        return self.inner.step_terms(client)

    def loss(self, client: LocalClient, x: Tensor, y: Tensor, z: Tensor, logits: Tensor) -> Tensor:
        return self.inner.loss(client, x, y, z, logits)

    def after_batch(self, client: LocalClient) -> None:
        self.inner.after_batch(client)

    def end(self, client: LocalClient) -> None:
        self.inner.end(client)

    def prior(self, sizes: Tensor) -> Tensor:
        return self.inner.prior(sizes)

    def finish(self, client: int, row: Tensor, origin: Tensor) -> None:
        self.inner.finish(client, row, origin)

    def update(self, server: Arena, cohort: Arena, weights: Tensor) -> None:
        self.inner.update(server, cohort, weights)

    def before_test(self, clients: Sequence[int]) -> None:
        self.inner.before_test(clients)

    def has_own(self, client: int) -> bool:
        return self.inner.has_own(client)

    def personalise(self, client: int, row: Tensor) -> None:
        self.inner.personalise(client, row)
