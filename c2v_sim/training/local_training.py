"""What a cohort's local training is made of: data, settings, and the objective that is minimised.

A CohortTraining is made once and serves every round; training/cohort.py trains by it one client on
each lane, training/stacked/ many clients in one computation. It never changes: another part makes
another CohortTraining with another `version`, by which a lane knows that the steps that it has
recorded (training/cuda_lane.py) are of no use any more.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from c2v_sim.models.linear_chain import Chain
from c2v_sim.system.seeding import SHUFFLE, rng
from c2v_sim.training.arena import Arena
from c2v_sim.training.lanes import Lanes
from c2v_sim.training.local_client import LocalClient
from c2v_sim.training.optimisers import Optimiser, StepTerms

PADDING = -100  # the label of what pads a batch: torch's cross_entropy leaves it out of its mean
LENGTHS = 4  # that padded batches have
STACKING = ("auto", "always", "never")  # whether clients are stacked (training/stacked)
_versions = itertools.count(1)


class Data(Protocol):
    """Samples on a device; a batch is the two tensors that the objective takes."""

    device: torch.device

    def batch(
        self, ids: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]: ...


class Objective(Protocol):
    """What clients train by: an algorithm, or an algorithm and what is added to its loss.

    `begin` and what follows it run on the lanes' threads, at the same time for several clients.
    """

    @property
    def name(self) -> str: ...

    @property
    def capturable(self) -> bool:
        """Whether a step may be recorded once and replayed (training/cuda_lane.py)."""

    @property
    def plain_sgd(self) -> bool:
        """Whether it is cross entropy and nothing else, so that clients may be stacked."""

    @property
    def leaves_out_padding(self) -> bool:
        """Whether the loss of a batch is that of the samples whose label is not PADDING."""

    @property
    def steps_per_batch(self) -> int: ...

    def begin(self, client: LocalClient) -> None:
        """`client` is about to train."""

    def step_terms(self, client: LocalClient) -> StepTerms:
        """What the optimiser's step adds to the gradient."""

    def local_loss(self, client: LocalClient, x: Tensor, y: Tensor, /) -> Tensor:
        """The whole loss of a batch."""

    def after_batch(self, client: LocalClient) -> None:
        """The steps on a batch are done."""

    def end(self, client: LocalClient) -> None:
        """`client` has trained."""


@dataclass(frozen=True)
class LocalTraining:
    """The settings of one client's training."""

    epochs: int
    batch_size: int
    optimiser: Optimiser
    seed: int
    augment: bool = False
    stream: int = SHUFFLE  # of the random order
    shuffle: bool = True  # else every epoch has the samples in the order of their ids

    def orders(self, samples: int, t: int, client: int) -> Iterator[np.ndarray]:
        """The order of a client's samples in each epoch of round `t`."""
        random = rng(self.seed, self.stream, t, client)
        for _ in range(self.epochs):
            yield random.permutation(samples) if self.shuffle else np.arange(samples)


@dataclass(frozen=True)
class TrainingPath:
    """How a cohort is trained, and why so."""

    chain: Chain | None  # the layers of a chain that is trained stacked
    why: str
    block: int = 0  # clients at most in one computation
    networks: bool = False  # stacked, but no chain: any network (training/stacked/networks.py)
    make_step: Any = None  # where a step is not SGD on cross entropy (training/stacked/blocks.py)

    @property
    def stacked(self) -> bool:
        return self.chain is not None or self.networks

    def __str__(self) -> str:
        kind = (
            "stacked, many clients in one computation"
            if self.stacked
            else "one client at a time on each lane"
        )
        return f"{kind}: {self.why}"


@dataclass(frozen=True, eq=False)
class CohortTraining:
    """All that local training is made of, but who trains and in which round."""

    lanes: Lanes
    server: Arena  # row 0: the global model, where every client begins
    cohort: Arena  # row by row what the clients of a cohort end with
    data: Data
    samples: Sequence[np.ndarray]  # ids of each client's samples
    local: LocalTraining
    objective: Objective
    only_averaged: bool = False  # whether nobody looks at the rows but training/aggregation.py
    at_once: bool = False  # whether plain SGD steps within the backward pass (training/at_once.py)
    path: TrainingPath = TrainingPath(None, "stacking was not asked for")
    longest: int = 0  # batch, where last batches are padded (padded_length); 0: they are not
    version: int = field(default_factory=_versions.__next__, init=False)


def batch_bounds(samples: int, batch_size: int) -> list[tuple[int, int]]:
    """Begin and end of each batch; a last batch of one sample is dropped (batch norm fails)."""
    if samples > 1 and batch_size > 1 and samples % batch_size == 1:
        samples -= 1
    return [(s, min(s + batch_size, samples)) for s in range(0, samples, batch_size)]


def padded_length(samples: int, longest: int) -> int:
    """One of LENGTHS lengths up to `longest` that a batch of `samples` is padded to.

    One length alone would make a batch of few samples as dear as a whole one.
    """
    grain = -(-longest // LENGTHS)
    return min(-(-samples // grain) * grain, longest)
