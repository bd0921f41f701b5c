"""Stage 7b: trains a cohort. Each client starts from the global row and leaves its own row.

Local training is the specification's: `epochs` passes over the client's samples in a freshly
drawn order, SGD on the cross-entropy, the last partial batch kept unless it is a single sample.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from c2v_sim import ops
from c2v_sim.arena import Arena
from c2v_sim.lanes import Lane, Lanes
from c2v_sim.models import logits
from c2v_sim.resident import ResidentData
from c2v_sim.seeding import SHUFFLE, rng, torch_seed


class Interrupted(Exception):
    """Local training was asked to stop before it was done."""


class TrainingError(RuntimeError):
    """Local training failed; the message names round, client and algorithm."""


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains."""

    epochs: int
    batch_size: int
    lr: float
    momentum: float
    weight_decay: float
    augment: bool
    seed: int


def batch_bounds(samples: int, batch_size: int) -> list[tuple[int, int]]:
    """Begin and end of each batch; a last batch of one sample is dropped (batch norm fails)."""
    if samples > 1 and batch_size > 1 and samples % batch_size == 1:
        samples -= 1
    return [(s, min(s + batch_size, samples)) for s in range(0, samples, batch_size)]


def train_client(
    lane: Lane,
    cohort: Arena,
    row: int,
    data: ResidentData,
    ids: np.ndarray,
    how: LocalTraining,
    round: int,
    client: int,
    stopped: Callable[[], bool] = lambda: False,
) -> Tensor:
    """Train `row` on samples `ids`; the mean training loss as a 0-d tensor on the device."""
    parameters = lane.model.bind(cohort, row)
    gradients = lane.model.gradients.zero_()
    momentum = lane.momentum.zero_() if how.momentum else None
    module = lane.model.module.train()
    order = rng(how.seed, SHUFFLE, round, client)
    flip_crop = None
    if how.augment:
        flip_crop = torch.Generator().manual_seed(torch_seed(how.seed, round, client))
    total, seen = torch.zeros((), device=data.device), 0
    for _ in range(how.epochs):
        shuffled = torch.from_numpy(ids[order.permutation(len(ids))]).to(data.device)
        for begin, end in batch_bounds(len(ids), how.batch_size):
            if stopped():
                raise Interrupted
            x, y = data.batch(shuffled[begin:end], flip_crop)
            loss = F.cross_entropy(logits(module, x), y)
            loss.backward()
            ops.sgd_step_(
                parameters,
                gradients,
                momentum,
                lr=how.lr,
                momentum=how.momentum,
                weight_decay=how.weight_decay,
                zero_grads=True,
            )
            total += loss.detach() * (end - begin)
            seen += end - begin
    return total / seen


def train_cohort(
    lanes: Lanes,
    server: Arena,
    cohort: Arena,
    data: ResidentData,
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
        losses[row] = train_client(
            lane, cohort, row, data, samples[client], how, round, client, lanes.stop.is_set
        )

    by_size = sorted(range(k), key=lambda row: -len(samples[clients[row]]))
    for row, _ in lanes.run(work, by_size):
        on_client(int(clients[row]))
    finite = (losses.isfinite() & cohort.data[:k].sum(dim=1).isfinite()).tolist()
    if not all(finite):
        bad = ", ".join(str(clients[row]) for row in range(k) if not finite[row])
        raise TrainingError(
            f"round {round}, client {bad}, algorithm {algorithm}: the loss or the local model is "
            f"not finite. Lower the learning rate (lr = {how.lr})"
        )
    return losses
