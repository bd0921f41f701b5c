"""Stage 7c: many clients as one batched computation.

Where a step costs little more than its calls, or leaves a GPU idle, the calls are made once for a
block of clients. Clients, orders and batches are those of training/cohort.py, so the result is that
of the lanes up to rounding. path.py says where it is done: on a CPU for linear and small MLP models
(chain.py), on a GPU for every network whose step is small (networks.py, blocks.py).

Uneven clients: rows are sorted by size, so those still training are always the first `active`
ones; a batch with fewer samples than the widest is padded, and the padding has weight 0. Blocks
are cut by the cohort alone and run on lanes of one intra-op thread, a block on one rank: the bits
do not depend on how many lanes or ranks there are.
"""

import math

import numpy as np
import torch
from torch import Tensor

from c2v_sim.system import ranks
from c2v_sim.training.cohort import (
    OnClient,
    check_finite,
    dealt,
    failures_named,
    meet,
    tell_of_others,
)
from c2v_sim.training.lane import Lane
from c2v_sim.training.local_training import CohortTraining
from c2v_sim.training.optimisers import Sgd
from c2v_sim.training.stacked.batches import make_batches
from c2v_sim.training.stacked.blocks import train_network_block
from c2v_sim.training.stacked.chain import rows_of, stacks, train_block
from c2v_sim.training.stacked.path import choose_path

__all__ = ["choose_path", "make_batches", "make_blocks", "ranks_of_clients", "train_stacked"]


def train_stacked(
    training: CohortTraining, clients: np.ndarray, t: int, on_client: OnClient = lambda client: None
) -> Tensor:  # [K]
    """train_cohort where the path is stacked: `clients` into rows 0..K-1; their mean losses."""
    if not training.path.stacked:
        raise ValueError(f"train_stacked: this must train otherwise ({training.path})")
    train = train_chain if training.path.chain else train_network
    cohort, samples, most = training.cohort, training.samples, training.path.block
    losses = torch.zeros(len(clients), device=training.data.device)
    sizes = [len(samples[client]) for client in clients]
    blocks = make_blocks(sizes, most)
    trainers = ranks_of_blocks(sizes, blocks)
    mine = [block for block in range(len(blocks)) if trainers[block] == ranks.rank()]

    def work(lane: Lane, block: int) -> None:
        rows = torch.tensor(blocks[block], device=losses.device)
        mine = [int(clients[row]) for row in blocks[block]]
        with failures_named(training, t, mine):
            losses[rows], trained, integers = train(training, lane, mine, t)
        cohort.data[:, : trained.shape[1]].index_copy_(0, rows, trained)
        cohort.integers.index_copy_(0, rows, integers)

    with ranks.same_fate():
        for block, _ in training.lanes.run(work, mine):
            for row in blocks[block]:
                on_client(int(clients[row]))
    of_clients = ranks_of_clients(sizes, most)
    losses = meet(training, of_clients, losses)
    tell_of_others(clients, of_clients, on_client)
    check_finite(training, t, clients, losses)
    return losses


def ranks_of_blocks(sizes: list[int], blocks: list[list[int]]) -> list[int]:
    return dealt([sum(sizes[row] for row in rows) for rows in blocks])


def ranks_of_clients(sizes: list[int], most: int) -> list[int]:
    """The rank that trains each client, in blocks of at most `most`; 0: they are not stacked."""
    if not most:
        return dealt(sizes)
    blocks = make_blocks(sizes, most)
    trainers = ranks_of_blocks(sizes, blocks)
    of_rows = {row: trainers[block] for block, rows in enumerate(blocks) for row in rows}
    return [of_rows[row] for row in range(len(sizes))]


Trained = tuple[Tensor, Tensor, Tensor]  # losses [k], rows [k, …], integers [k, n]


def train_chain(training: CohortTraining, lane: Lane, clients: list[int], t: int) -> Trained:
    """A block of a chain of Linear layers."""
    server, sgd, chain = training.server, training.local.optimiser, training.path.chain
    assert isinstance(sgd, Sgd)
    assert chain is not None
    start = {slot.name: slot.view(server.data[0]) for slot in server.layout.parameters}
    layers = stacks(start, chain, len(clients))
    own = [training.samples[client] for client in clients]
    batches = make_batches(own, clients, training.local, t)
    losses = train_block(layers, training.data, batches, sgd, training.lanes.stopped)
    return losses, rows_of(layers, chain, server.layout), server.integers.expand(len(clients), -1)


def train_network(training: CohortTraining, lane: Lane, clients: list[int], t: int) -> Trained:
    """A block of any network that stacks."""
    most = len(training.cohort.data)  # clients of the largest cohort; a block has half of them
    capacity = min(training.path.block, math.ceil(most / min(2, most)))
    return train_network_block(training, lane, clients, t, capacity)


def make_blocks(sizes: list[int], most: int) -> list[list[int]]:
    """Rows of clients that train together, at most `most`, the larger client first in each block.

    At least two blocks, for two lanes; dealt in turn, so that the large clients are spread.
    """
    by_size = sorted(range(len(sizes)), key=lambda row: -sizes[row])
    count = max(min(2, len(sizes)), math.ceil(len(sizes) / most))
    return [by_size[first::count] for first in range(count)]
