"""What a sampler may do beyond answering: ask the run for things, keep state, weigh.

    ids = sampler(seed, round, sizes [M], k)     k client ids, as a plain policy answers
    start          once before the first round: ask the run for what is needed
    finish         once per round, when the cohort has trained: its clients and their mean losses
    finish_rows    the same, with what each client ended with

Of the run it is given a `SamplerRun`: tensors and clients' rows that are saved with the run, and
the local losses of any clients. Only `finish` and `finish_rows` change what lasts, so a round that
is interrupted leaves no trace, and drawing from (seed, round) alone makes a resumed run choose the
same clients. All of it is called on all ranks alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from c2v_sim.training.arena import Arena, Layout
from c2v_sim.training.client_rows import ClientRows
from c2v_sim.training.sampling import Policy, checked_cohort


class SamplerRun(Protocol):
    """What a sampler may ask for; names of its state begin with `sampler.`."""

    @property
    def clients(self) -> int: ...

    @property
    def cohort_size(self) -> int: ...

    @property
    def layout(self) -> Layout: ...

    @property
    def device(self) -> torch.device: ...

    def server_state(self, name: str, *shape: int) -> Tensor:
        """Zeros that are changed in place and saved."""

    def client_rows(self, name: str, width: int) -> ClientRows:
        """A row for every client that is saved, made when it is written."""

    def local_losses(self, clients: Sequence[int]) -> np.ndarray:
        """The global model's mean loss on each client's training samples, [n]; takes a pass over
        all of them."""


class Sampler:
    """Uniform choices are sampling.py's; a sampler overrides what it needs of this."""

    # True: each of the k answers counts 1/k, whatever the algorithm's prior, and a client may be
    # named several times. False: k different clients, with the algorithm's prior.
    weighs_answers = False

    def start(self, run: SamplerRun) -> None:
        """Once before the first round."""

    def __call__(self, seed: int, t: int, sizes: np.ndarray, k: int) -> np.ndarray:
        """k client ids for round `t`."""
        raise NotImplementedError(f"{type(self).__name__} must say who trains, in __call__")

    def finish(self, clients: np.ndarray, losses: Tensor) -> None:
        """`clients` [n], ascending, have trained with the mean `losses` [n]."""

    def finish_rows(self, clients: np.ndarray, rows: Tensor, origin: Tensor) -> None:
        """They ended at `rows` [n, size], having begun at `origin` [size]."""

    @property
    def needs_rows(self) -> bool:
        """Whether it looks at what each client ended with."""
        return type(self).finish_rows is not Sampler.finish_rows


@dataclass
class OfPolicy(Sampler):
    """A policy that needs nothing and keeps nothing."""

    policy: Policy

    def __call__(self, seed: int, t: int, sizes: np.ndarray, k: int) -> np.ndarray:
        return self.policy(seed, t, sizes, k)


def as_sampler(policy: Policy | Sampler) -> Sampler:
    return policy if isinstance(policy, Sampler) else OfPolicy(policy)


class Cohort(NamedTuple):
    """Who trains in a round."""

    clients: np.ndarray  # int64 [n], ascending; n <= k
    times: np.ndarray | None = None  # [n], how often each was named, where that is its weight


def finish_round(
    sampler: Sampler, clients: np.ndarray, losses: Tensor, cohort: Arena, server: Arena
) -> None:
    """`clients` have trained into the first rows of `cohort`, and `server` is still where they
    began; this must not be interrupted."""
    sampler.finish(clients, losses)
    if sampler.needs_rows:
        sampler.finish_rows(clients, cohort.data[: len(clients)], server.data[0])


def choose(sampler: Sampler, seed: int, t: int, sizes: np.ndarray, k: int) -> Cohort:
    """The cohort of round `t`; ValueError where the answer is none."""
    repeated = sampler.weighs_answers
    ids = checked_cohort(sampler(seed, t, sizes, k), t, len(sizes), k, repeated=repeated)
    return Cohort(*np.unique(ids, return_counts=True)) if repeated else Cohort(ids)
