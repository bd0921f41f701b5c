"""Stage 7b: trains a cohort. Each client starts from the global row and leaves its own row.

Local training is the specification's: `epochs` passes over the client's samples, each in a freshly
drawn order, the last partial batch kept unless it is a single sample. Loss and optimiser are given
in LocalTraining, so that every kind of model is trained by this one loop.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from c2v_sim.arena import Arena
from c2v_sim.lanes import Lane, Lanes
from c2v_sim.models import logits
from c2v_sim.optimisers import Optimiser
from c2v_sim.seeding import SHUFFLE, rng, torch_seed


class Interrupted(Exception):
    """Local training was asked to stop before it was done."""


class TrainingError(RuntimeError):
    """Local training failed; the message names round, client and algorithm."""


class Data(Protocol):
    """Samples on a device; a batch is whatever the loss takes."""

    device: torch.device

    def batch(self, ids: Tensor, generator: torch.Generator | None = None) -> tuple[Any, ...]: ...


def cross_entropy(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The loss of ordinary training."""
    return F.cross_entropy(logits(module, x), y)


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains."""

    epochs: int
    batch_size: int
    optimiser: Optimiser
    seed: int
    loss: Callable[..., Tensor] = cross_entropy  # (module, *batch) -> mean over the batch
    augment: bool = False
    stream: int = SHUFFLE  # of the random order


def batch_bounds(samples: int, batch_size: int) -> list[tuple[int, int]]:
    """Begin and end of each batch; a last batch of one sample is dropped (batch norm fails)."""
    if samples > 1 and batch_size > 1 and samples % batch_size == 1:
        samples -= 1
    return [(s, min(s + batch_size, samples)) for s in range(0, samples, batch_size)]


def train_client(
    lane: Lane,
    cohort: Arena,
    row: int,
    data: Data,
    ids: np.ndarray,
    how: LocalTraining,
    round: int,
    client: int,
    stopped: Callable[[], bool] = lambda: False,
) -> Tensor:
    """Train `row` on samples `ids`; the mean training loss as a 0-d tensor on the device."""
    parameters, gradients = lane.model.bind(cohort, row), lane.model.gradients.zero_()
    module = lane.model.module.train()
    step = how.optimiser.start(parameters, gradients, lane.buffer)
    order = rng(how.seed, how.stream, round, client)
    generator = lane.seed(torch_seed(how.seed, round, client), data.device)
    total, seen = torch.zeros((), device=data.device), 0
    for _ in range(how.epochs):
        shuffled = torch.from_numpy(ids[order.permutation(len(ids))]).to(data.device)
        for begin, end in batch_bounds(len(ids), how.batch_size):
            if stopped():
                raise Interrupted
            batch = data.batch(shuffled[begin:end], generator if how.augment else None)
            loss = how.loss(module, *batch)
            loss.backward()
            step()
            total += loss.detach() * (end - begin)
            seen += end - begin
    return total / seen


def train_cohort(
    lanes: Lanes,
    server: Arena,
    cohort: Arena,
    data: Data,
    samples: tuple[np.ndarray, ...],
    clients: np.ndarray,
    how: LocalTraining,
    round: int,
    algorithm: str,
    on_client: Callable[[int], None] = lambda client: None,
) -> Tensor:  # [K]
    """Train `clients` (ascending ids) into cohort rows 0..K-1; their mean losses.

    The largest client goes first, so that no straggler starts last; the row is the client's
    position in the cohort, so neither the schedule nor the number of lanes shows in the result.
    """
    k = len(clients)
    cohort.data[:k].copy_(server.data[0].expand(k, -1))
    cohort.integers[:k].copy_(server.integers[0].expand(k, -1))
    losses = torch.zeros(k, device=data.device)

    def work(lane: Lane, row: int) -> None:
        client = int(clients[row])
        try:
            losses[row] = train_client(
                lane, cohort, row, data, samples[client], how, round, client, lanes.stopped
            )
        except Interrupted:
            raise
        except Exception as error:
            raise TrainingError(
                f"round {round}, client {client}, algorithm {algorithm}: "
                f"{type(error).__name__}: {error}"
            ) from error

    by_size = sorted(range(k), key=lambda row: -len(samples[clients[row]]))
    for row, _ in lanes.run(work, by_size):
        on_client(int(clients[row]))
    finite = (losses.isfinite() & cohort.data[:k].sum(dim=1).isfinite()).tolist()
    if not all(finite):
        bad = ", ".join(str(clients[row]) for row in range(k) if not finite[row])
        raise TrainingError(
            f"round {round}, client {bad}, algorithm {algorithm}: the loss or the local model is "
            f"not finite; lower the learning rate ({how.optimiser})"
        )
    return losses
