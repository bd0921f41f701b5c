"""Stage 7c: trains a cohort. Each client starts from the global row and leaves its own row.

Local training is the specification's: `epochs` passes over the client's samples, each in a freshly
drawn order, the last partial batch kept unless it is a single sample. The objective gives the
loss and the terms of the optimiser's step, so that every kind of model is trained by this one
loop.

Where several ranks share a run (system/ranks), each trains some clients of the cohort; then the
rows meet, and every rank goes on with all of them.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from c2v_sim.system import ranks
from c2v_sim.system.errors import Interrupted, TrainingError
from c2v_sim.system.seeding import torch_seed
from c2v_sim.training.aggregation import CohortSum, columns_suffice
from c2v_sim.training.at_once import steps_of
from c2v_sim.training.lane import Lane
from c2v_sim.training.local_training import (
    PADDING,
    CohortTraining,
    batch_bounds,
    padded_length,
)
from c2v_sim.training.optimisers import Step

OnClient = Callable[[int], None]  # is told the id of a client that has finished


def train_client(training: CohortTraining, lane: Lane, *, stoppable: bool = True) -> Tensor:
    """Train the client that has begun its participation on `lane`.

    The mean training loss, a 0-d tensor on the device. Not `stoppable`: to the end, as an
    evaluation belongs to its round.
    """
    client, local, objective = lane.client, training.local, training.objective
    ids = training.samples[client.id]
    capturable = objective.capturable and getattr(local.optimiser, "capturable", True)
    lane.prepare(training.version, capturable=capturable)
    objective.begin(client)
    with steps_of(training, client) as update:
        total = train_batches(training, lane, update, stoppable=stoppable)
    objective.end(client)
    samples = batch_bounds(len(ids), local.batch_size)[-1][1]
    return total / (local.epochs * samples)


def train_batches(training: CohortTraining, lane: Lane, update: Step, *, stoppable: bool) -> Tensor:
    """All epochs of the client on `lane`; the sum of its samples' losses."""
    client, local, objective = lane.client, training.local, training.objective
    ids = training.samples[client.id]
    total = client.owned_memory("training", "loss", ()).zero_()
    client.padded = bool(training.longest) and objective.leaves_out_padding

    def step(ids: Tensor) -> None:
        count: int | Tensor = len(ids)
        if client.padded:
            padding, ids = ids < 0, ids.clamp(min=0)
            count = len(ids) - padding.sum()
        x, y = training.data.batch(ids, client.generator if local.augment else None)
        if client.padded:
            y = y.masked_fill(padding, PADDING)
        for _ in range(objective.steps_per_batch):
            with client.drawing():
                loss = objective.local_loss(client, x, y)
            loss.backward()
            update()
        objective.after_batch(client)
        total.add_(loss.detach() * count)

    bounds = batch_bounds(len(ids), local.batch_size)
    last, seen = bounds[-1]
    if client.padded:
        bounds[-1] = last, last + padded_length(seen - last, training.longest)
    for order in local.orders(len(ids), client.round, client.id):
        shuffled = lane.upload(padded(ids[order[:seen]], bounds[-1][1]))
        for begin, end in bounds:
            if stoppable and training.lanes.stopped():
                raise Interrupted
            lane.step(step, shuffled[begin:end])
    return total


def padded(ids: np.ndarray, length: int) -> np.ndarray:
    """`ids`, and -1 after them up to `length`."""
    if len(ids) == length:
        return ids
    return np.pad(ids, (0, length - len(ids)), constant_values=-1)


def train_cohort(
    training: CohortTraining,
    clients: np.ndarray,
    t: int,
    on_client: OnClient = lambda client: None,
    weights: Tensor | None = None,
) -> Tensor:  # [K]
    """Train `clients` (ascending ids) in round `t` into cohort rows 0..K-1; their mean losses.

    Where the cohort is a CohortSum, into that, with `weights` [K].

    The largest client goes first, so that no straggler starts last; the row is the client's
    position in the cohort, so neither the schedule nor the number of lanes shows in the result.
    """
    server, cohort, samples = training.server, training.cohort, training.samples
    losses = torch.zeros(len(clients), device=training.data.device)
    if isinstance(cohort, CohortSum):
        if weights is None:
            raise ValueError("train_cohort: a cohort that is summed needs the weights")
        cohort.begin(weights)

    def work(lane: Lane, row: int) -> None:
        id, client = int(clients[row]), lane.client
        seed = torch_seed(training.local.seed, t, id)
        client.begin_participation(id, t, len(samples[id]), server, seed)
        with failures_named(training, t, [id]):
            losses[row] = train_client(training, lane)
        if isinstance(cohort, CohortSum):
            if not client.row.data.sum().isfinite():
                losses[row] = torch.nan  # who it was is said below, when all have trained
            cohort.add(row, client.row)
            return
        cohort.data[row].copy_(client.row.data[0])
        cohort.integers[row].copy_(client.row.integers[0])

    sizes = [len(samples[client]) for client in clients]
    trainers = dealt(sizes)
    mine = [row for row in largest_first(sizes) if trainers[row] == ranks.rank()]
    with ranks.same_fate():
        for row, _ in training.lanes.run(work, mine):
            on_client(int(clients[row]))
    losses = meet(training, trainers, losses)
    tell_of_others(clients, trainers, on_client)
    check_finite(training, t, clients, losses)
    return losses


def largest_first(sizes: Sequence[int]) -> list[int]:
    """The positions of `sizes`, that of the largest first."""
    return sorted(range(len(sizes)), key=lambda i: -sizes[i])


def dealt(sizes: Sequence[int]) -> list[int]:
    """The rank of each item: the largest first, each to the rank that has least so far."""
    out = [0] * len(sizes)
    loads = [(0, rank) for rank in range(ranks.size())]  # a heap
    for i in largest_first(sizes) if len(loads) > 1 else ():
        load, out[i] = loads[0]
        heapq.heapreplace(loads, (load + sizes[i], out[i]))
    return out


def tell_of_others(clients: np.ndarray, trainers: Sequence[int], on_client: OnClient) -> None:
    """The clients that other ranks have trained are finished as well."""
    for client, trainer in zip(clients, trainers, strict=True):
        if trainer != ranks.rank():
            on_client(int(client))


def meet(training: CohortTraining, trainers: Sequence[int], losses: Tensor) -> Tensor:  # [K]
    """All rows on all ranks, and all losses: row i is that of rank `trainers[i]`.

    Where the rows are only averaged and are large, they stay where they are until then.
    """
    cohort = training.cohort
    if isinstance(cohort, CohortSum):
        return losses
    apart = training.only_averaged and columns_suffice(cohort)
    cohort.ranks = trainers if apart else None
    for rows in (cohort.integers,) if apart else (cohort.data, cohort.integers):
        ranks.share(*((rows[i], trainer) for i, trainer in enumerate(trainers)))
    return ranks.pick(losses, trainers)


@contextmanager
def failures_named(training: CohortTraining, t: int, clients: list[int]) -> Iterator[None]:
    """An error inside becomes a TrainingError that says who was training."""
    try:
        yield
    except Interrupted:
        raise
    except Exception as error:
        who = ", ".join(map(str, clients))
        raise TrainingError(
            f"round {t}, client {who}, algorithm {training.objective.name}: local training "
            f"failed, {type(error).__name__}: {error}"
        ) from error


def check_finite(training: CohortTraining, t: int, clients: np.ndarray, losses: Tensor) -> None:
    """Raise TrainingError that names the clients whose loss or model is not finite."""
    rows, trainers = training.cohort.data[: len(clients)], training.cohort.ranks
    marks = losses.isfinite()
    if not isinstance(training.cohort, CohortSum):
        marks &= rows.sum(dim=1).isfinite()
    finite = (marks if trainers is None else ranks.pick(marks, trainers)).tolist()
    if not all(finite):
        bad = ", ".join(str(client) for client, ok in zip(clients, finite, strict=True) if not ok)
        raise TrainingError(
            f"round {t}, client {bad}, algorithm {training.objective.name}: the loss or the local "
            f"model is not finite; lower the learning rate ({training.local.optimiser})"
        )
