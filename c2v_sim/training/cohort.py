"""Stage 7c: trains a cohort. Each client starts from the global row and leaves its own row.

Local training is the specification's: `epochs` passes over the client's samples, each in a freshly
drawn order, the last partial batch kept unless it is a single sample. The algorithm gives the
loss and the terms of the optimiser's step, so that every kind of model is trained by this one
loop.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from c2v_sim.algorithms.fedavg import Algorithm
from c2v_sim.system.errors import Interrupted, TrainingError
from c2v_sim.system.seeding import SHUFFLE, rng, torch_seed
from c2v_sim.training.arena import Arena
from c2v_sim.training.lanes import Lane, Lanes
from c2v_sim.training.optimisers import Optimiser


class Data(Protocol):
    """Samples on a device; a batch is whatever the loss takes."""

    device: torch.device

    def batch(self, ids: Tensor, generator: torch.Generator | None = None) -> tuple[Any, ...]: ...


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains."""

    epochs: int
    batch_size: int
    optimiser: Optimiser
    seed: int
    augment: bool = False
    stream: int = SHUFFLE  # of the random order


def batch_bounds(samples: int, batch_size: int) -> list[tuple[int, int]]:
    """Begin and end of each batch; a last batch of one sample is dropped (batch norm fails)."""
    if samples > 1 and batch_size > 1 and samples % batch_size == 1:
        samples -= 1
    return [(s, min(s + batch_size, samples)) for s in range(0, samples, batch_size)]


def train_client(
    lane: Lane,
    data: Data,
    ids: np.ndarray,
    how: LocalTraining,
    algorithm: Algorithm,
    stopped: Callable[[], bool] = lambda: False,
) -> Tensor:
    """Train the lane's client, who has taken the seat, on samples `ids`.

    The mean training loss, a 0-d tensor on the device.
    """
    client = lane.client
    algorithm.begin(client)
    update = how.optimiser.start(client, **algorithm.step_terms(client))
    lane.prepare(data, how, algorithm)
    total = client.memory("loss").zero_()

    def step(ids: Tensor) -> None:
        batch = data.batch(ids, client.generator if how.augment else None)
        loss = algorithm.local_loss(client, *batch)
        loss.backward()
        update()
        total.add_(loss.detach() * len(ids))

    order = rng(how.seed, how.stream, client.round, client.id)
    bounds = batch_bounds(len(ids), how.batch_size)
    for _ in range(how.epochs):
        shuffled = lane.upload(ids[order.permutation(len(ids))])
        for begin, end in bounds:
            if stopped():
                raise Interrupted
            lane.step(step, shuffled[begin:end])
    return total / (how.epochs * bounds[-1][1])


def train_cohort(
    lanes: Lanes,
    server: Arena,
    cohort: Arena,
    data: Data,
    samples: tuple[np.ndarray, ...],
    clients: np.ndarray,
    how: LocalTraining,
    algorithm: Algorithm,
    round: int,
    on_client: Callable[[int], None] = lambda client: None,
) -> Tensor:  # [K]
    """Train `clients` (ascending ids) into cohort rows 0..K-1; their mean losses.

    The largest client goes first, so that no straggler starts last; the row is the client's
    position in the cohort, so neither the schedule nor the number of lanes shows in the result.
    """
    k = len(clients)
    losses = torch.zeros(k, device=data.device)

    def work(lane: Lane, row: int) -> None:
        id, client = int(clients[row]), lane.client
        ids = samples[id]
        client.sit(id, round, len(ids), server, torch_seed(how.seed, round, id))
        with failures_named(round, [id], algorithm):
            losses[row] = train_client(lane, data, ids, how, algorithm, lanes.stopped)
        cohort.data[row].copy_(client.row.data[0])
        cohort.integers[row].copy_(client.row.integers[0])

    by_size = sorted(range(k), key=lambda row: -len(samples[clients[row]]))
    for row, _ in lanes.run(work, by_size):
        on_client(int(clients[row]))
    check_finite(losses, cohort, clients, how, algorithm, round)
    return losses


@contextmanager
def failures_named(round: int, clients: list[int], algorithm: Algorithm) -> Iterator[None]:
    """An error inside becomes a TrainingError that says who was training."""
    try:
        yield
    except Interrupted:
        raise
    except Exception as error:
        who = ", ".join(map(str, clients))
        raise TrainingError(
            f"round {round}, client {who}, algorithm {algorithm.name}: local training failed, "
            f"{type(error).__name__}: {error}"
        ) from error


def check_finite(
    losses: Tensor,
    cohort: Arena,
    clients: np.ndarray,
    how: LocalTraining,
    algorithm: Algorithm,
    round: int,
) -> None:
    """Raise TrainingError that names the clients whose loss or model is not finite."""
    k = len(clients)
    finite = (losses.isfinite() & cohort.data[:k].sum(dim=1).isfinite()).tolist()
    if not all(finite):
        bad = ", ".join(str(clients[row]) for row in range(k) if not finite[row])
        raise TrainingError(
            f"round {round}, client {bad}, algorithm {algorithm.name}: the loss or the local "
            f"model is not finite; lower the learning rate ({how.optimiser})"
        )
