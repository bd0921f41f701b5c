"""A block of clients through any network that stacks: a step of all of them as one computation.

The models of a block are rows of the lane's own memory [k, size], as the cohort's are, so the step
of the optimiser is the fused one, and a GPU's lane can record the whole step
(training/cuda_lane.py): all that it reads and writes keeps its address, and what differs from step
to step is one table [clients, 1 + B] of counts and sample ids. To have few kinds of step, the
number of clients that still train and the length of a batch are rounded up; padding counts for
nothing in losses, gradients and batch statistics, and whoever has finished is copied away.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from c2v_sim import ops
from c2v_sim.system.errors import Interrupted
from c2v_sim.training.arena import Layout
from c2v_sim.training.lane import Lane, Step
from c2v_sim.training.local_training import CohortTraining
from c2v_sim.training.optimisers import Sgd
from c2v_sim.training.stacked.batches import Batches, make_batches
from c2v_sim.training.stacked.networks import rows_as, stacked_logits

CLIENTS_STEP, LENGTH_STEP = 4, 16  # what both are rounded up to


@dataclass(frozen=True)
class Block:
    """The clients that train together, and what a lane keeps of them, [capacity, …]."""

    clients: list[int]  # the one with most steps first
    round: int
    capacity: int
    rows: Tensor  # [capacity, size]
    gradients: Tensor  # [capacity, trainable]
    total: Tensor  # [capacity], losses times samples
    lane: Lane

    def memory(self, name: str, *shape: int) -> Tensor:
        return self.lane.client.owned_memory("stacked", name, (self.capacity, *shape))


MakeStep = Callable[[CohortTraining, Block], Step]  # the step takes a table [active, 1 + B]


def train_network_block(
    training: CohortTraining, lane: Lane, clients: list[int], t: int, capacity: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Train `clients`, at most `capacity`, the one with most steps first.

    Their mean losses [k], rows [k, size] and counts of batches [k, integers].
    """
    local, server, layout = training.local, training.server, training.server.layout
    client, k = lane.client, len(clients)
    batches = make_batches([training.samples[id] for id in clients], clients, local, t)

    def memory(name: str, *shape: int) -> Tensor:
        return client.owned_memory("stacked", name, (capacity, *shape))

    rows, total = memory("rows", layout.size), memory("loss").zero_()
    gradients, done = memory("gradients", layout.trainable).zero_(), memory("done", layout.size)
    rows[:k] = server.data[0]
    client.module.train()
    lane.prepare(training.version, capturable=training.objective.capturable)
    make_step: MakeStep = training.path.make_step or sgd_step
    step = make_step(training, Block(clients, t, capacity, rows, gradients, total, lane))
    tables = lane.upload(tables_of(batches, local.batch_size))
    steps = np.count_nonzero(batches.counts, axis=0)
    for number, in_step in enumerate(batches.counts):
        if training.lanes.stopped():
            raise Interrupted
        active = rounded(int(np.count_nonzero(in_step)), CLIENTS_STEP, k)
        length = rounded(int(in_step.max()), LENGTH_STEP, tables.shape[2] - 1)
        client.variant = "stacked", length
        lane.step(step, tables[number, :active, : 1 + length])
        for slot in np.flatnonzero(steps == number + 1):
            done[slot] = rows[slot]
    samples = torch.from_numpy(batches.counts.sum(axis=0)).to(rows.device)
    seen = torch.from_numpy(steps).to(rows.device)
    return total[:k] / samples, done[:k], server.integers[:1] + seen[:, None]


def sgd_step(training: CohortTraining, block: Block) -> Step:
    """SGD on cross entropy."""
    sgd, layout, module = (
        training.local.optimiser, training.server.layout, block.lane.client.module
    )  # fmt: skip
    if not isinstance(sgd, Sgd):
        raise ValueError(f"train_stacked: the optimiser must be the fused SGD, got {sgd}")
    velocity = block.memory("velocity", layout.trainable).zero_() if sgd.momentum else None

    def step(table: Tensor) -> None:
        active, n = len(table), table[:, 0]
        ids = table[:, 1:]
        x, y = training.data.batch(ids.flatten())
        real = torch.arange(ids.shape[1], device=ids.device) < n[:, None]  # [active, B]
        share = real / n.clamp(min=1)[:, None]
        out, p, _ = stacked_logits(module, layout, block.rows[:active], x, real.float())
        each = F.cross_entropy(out, y, reduction="none").view(real.shape)
        loss = (torch.where(real, each, 0.0) * share).sum(1)
        write_gradients(loss.sum(), p, layout, block.gradients[:active])
        block.total[:active] += loss.detach() * n
        ops.sgd_step_(
            block.rows[:active, : layout.trainable],
            block.gradients[:active],
            None if velocity is None else velocity[:active],
            lr=sgd.lr,
            momentum=sgd.momentum,
            weight_decay=sgd.weight_decay,
        )

    return step


def write_gradients(loss: Tensor, leaves: list[Tensor], layout: Layout, rows: Tensor) -> None:
    """Those of `leaves`, the parameters of k clients, into rows [k, trainable]."""
    of_loss = torch.autograd.grad(loss, leaves, allow_unused=True)
    for slot, gradient in zip(layout.parameters, of_loss, strict=True):
        if gradient is not None:  # else it stays 0
            rows_as(slot, rows).copy_(gradient)


def tables_of(batches: Batches, batch_size: int) -> np.ndarray:  # [steps, k, 1 + B]
    """Counts and sample ids side by side, padded to the length that batches are rounded up to."""
    ids = batches.ids.numpy()
    length = rounded(ids.shape[2], LENGTH_STEP, batch_size)
    wider = np.concatenate([ids, np.repeat(ids[:, :, -1:], length - ids.shape[2], axis=2)], axis=2)
    return np.concatenate([batches.counts[:, :, None], wider], axis=2)


def rounded(count: int, step: int, most: int) -> int:
    return min(most, -(-count // step) * step)
