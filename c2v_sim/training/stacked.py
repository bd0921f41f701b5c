"""Stage 7c for linear and small MLP models: many clients as one batched computation.

Where a step costs little more than its calls, the calls are made once for a block of clients:
weights [k, out, in], inputs [k, B, in], one batched product for all of them. Clients, orders and
batches are those of training/cohort.py, so the result is that of the lanes up to rounding:

    forward    h_0 = x, h_l = relu(h_{l-1} W_l^T + b_l), without relu where the model has none
    backward   d_L = (softmax(h_L) - onehot(y)) / n, d_{l-1} = (d_l W_l) · [h_{l-1} > 0]
    gradients  W_l: d_l^T h_{l-1}, b_l: sum of d_l over the batch

Uneven clients: rows are sorted by size, so those still training are always the first `active`
ones; a batch with fewer samples than the widest is padded, and the padding has weight 0. Blocks
are cut by the cohort alone and run on lanes of one intra-op thread, a block on one rank: the bits
do not depend on how many lanes or ranks there are.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from c2v_sim import ops
from c2v_sim.models.linear_chain import Chain, NoChain, linear_chain
from c2v_sim.system import ranks
from c2v_sim.system.errors import ConfigError, Interrupted
from c2v_sim.training.arena import Layout
from c2v_sim.training.cohort import (
    OnClient,
    check_finite,
    dealt,
    failures_named,
    meet,
    tell_of_others,
)
from c2v_sim.training.lane import Lane
from c2v_sim.training.local_training import (
    CohortTraining,
    Data,
    LocalTraining,
    Objective,
    TrainingPath,
    batch_bounds,
)
from c2v_sim.training.optimisers import Sgd

# Measured (CPU seconds of a round against one lane, 784 inputs): 10 clients, linear 2.3–2.9 times
# faster, hidden layer of 64 1.3–1.9, of 200 1.3–1.5, of 512 1.2; 100 clients of 20 samples: 6.5,
# 3.7, 2.0. Beyond this size the gain is less than what uneven blocks may lose on two lanes.
LARGEST = 200_000  # parameters of a model
FEWEST = 4  # clients in a cohort
BLOCK = 32  # clients in a block; more gain little, and fewer blocks keep fewer lanes busy


def choose_path(
    model: nn.Module,
    x: Tensor,
    local: LocalTraining,
    objective: Objective,
    cohort: int,
    wish: str = "auto",
) -> TrainingPath:
    """Stacked where train_stacked does what train_cohort does, and does it faster.

    x: a batch [B, …] that the model takes; cohort: clients in a round; wish: one of STACKING,
    of which `always` takes a path that is slower, and raises where there is none.
    """
    if wish == "never":
        return TrainingPath(None, "stacking is not wanted")
    path = found_path(model, x, local, objective, cohort, faster=wish == "auto")
    if wish == "always" and not path.stacked:
        raise ConfigError(f"stacked = always: clients cannot be stacked here: {path.why}")
    return path


def found_path(
    model: nn.Module,
    x: Tensor,
    local: LocalTraining,
    objective: Objective,
    cohort: int,
    faster: bool,
) -> TrainingPath:
    if reason := not_plain(local, objective, cohort if faster else FEWEST):
        return TrainingPath(None, reason)
    try:
        chain = linear_chain(model, x)
    except NoChain as error:
        return TrainingPath(None, f"the model is no chain of Linear and ReLU: {error}")
    size = sum(p.numel() for p in model.parameters())
    if faster and size > LARGEST:
        reason = f"{size:,} parameters, and above {LARGEST:,} stacking gains little"
        return TrainingPath(None, reason)
    layers = f"{len(chain)} Linear layers" if len(chain) > 1 else "one Linear layer"
    return TrainingPath(chain, f"the model is nothing but {layers} and ReLU")


def not_plain(local: LocalTraining, objective: Objective, cohort: int) -> str:
    """What else than the model stands against stacking, in words."""
    if not isinstance(local.optimiser, Sgd):
        name = getattr(local.optimiser, "name", type(local.optimiser).__name__)
        return f"the optimiser is {name}, not the fused SGD, which is faster"
    if not objective.plain_sgd:
        return f"local training is more than SGD on cross entropy ({objective.name})"
    if local.augment:
        return "images are augmented"
    return f"a cohort has fewer than {FEWEST} clients" if cohort < FEWEST else ""


@dataclass(frozen=True)
class Batches:
    """The samples of each step of k clients, the client with most steps first."""

    ids: Tensor  # int64 [steps, k, B], padded with a sample of the same client
    counts: np.ndarray  # int64 [steps, k], samples that count; 0 after a client's last step


def make_batches(
    samples: list[np.ndarray], clients: list[int], local: LocalTraining, t: int
) -> Batches:
    """The batches that train_client would draw for each client in round `t`."""
    bounds = [batch_bounds(len(ids), local.batch_size) for ids in samples]
    width = max(end - begin for mine in bounds for begin, end in mine)
    ids = np.zeros((local.epochs * len(bounds[0]), len(clients), width), dtype=np.int64)
    counts = np.zeros(ids.shape[:2], dtype=np.int64)
    for k, (mine, batches) in enumerate(zip(samples, bounds, strict=True)):
        used, steps = batches[-1][1], local.epochs * len(batches)
        padded = np.full((local.epochs, len(batches) * width), mine[0])
        for epoch, order in enumerate(local.orders(len(mine), t, clients[k])):
            padded[epoch, :used] = mine[order[:used]]
        ids[:steps, k] = padded.reshape(steps, width)
        counts[:steps, k] = [end - begin for begin, end in batches] * local.epochs
    return Batches(torch.from_numpy(ids), counts)


@dataclass(frozen=True)
class Stack:
    """A layer of k models, or its gradients or velocities."""

    weight: Tensor  # [k, out, in]
    bias: Tensor | None  # [k, out]
    relu: bool

    @property
    def tensors(self) -> list[Tensor]:
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def each(self, change: Callable[[Tensor], Tensor]) -> "Stack":
        bias = None if self.bias is None else change(self.bias)
        return Stack(change(self.weight), bias, self.relu)


def write_gradients(
    layers: list[Stack], gradients: list[Stack], x: Tensor, y: Tensor, share: Tensor
) -> Tensor:  # [k]
    """Overwrite `gradients` with those of sum_b share_b · cross entropy_b; returns that sum.

    x [k, B, in], y [k, B], share [k, B].
    """
    inputs = [x]
    for layer in layers:
        if layer.bias is None:
            out = torch.bmm(inputs[-1], layer.weight.mT)
        else:
            out = torch.baddbmm(layer.bias.unsqueeze(1), inputs[-1], layer.weight.mT)
        inputs.append(out.relu_() if layer.relu else out)
    log_p, target = torch.log_softmax(inputs.pop(), dim=2), y.unsqueeze(2)
    loss = -(log_p.gather(2, target).squeeze(2) * share).sum(dim=1)
    d = log_p.exp_()
    d.scatter_add_(2, target, d.new_full((), -1.0).expand(target.shape))  # p - onehot(y)
    d *= share.unsqueeze(2)
    for number in reversed(range(len(layers))):
        gradient = gradients[number]
        torch.bmm(d.mT, inputs[number], out=gradient.weight)
        if gradient.bias is not None:
            torch.sum(d, dim=1, out=gradient.bias)
        if number:
            d = torch.bmm(d, layers[number].weight)
            if layers[number - 1].relu:
                d.mul_(inputs[number] > 0)
    return loss


def train_block(
    layers: list[Stack],
    data: Data,
    batches: Batches,
    sgd: Sgd,
    stopped: Callable[[], bool],
) -> Tensor:  # [k]
    """Train k models in place; their mean losses."""
    gradients = [layer.each(torch.empty_like) for layer in layers]
    # Without momentum nothing is stored, but one list for both cases keeps the loop simple.
    velocities = [
        layer.each(lambda p: torch.zeros_like(p if sgd.momentum else p[:, :0])) for layer in layers
    ]
    ids, counts = batches.ids.to(data.device), torch.from_numpy(batches.counts).to(data.device)
    position = torch.arange(ids.shape[2], device=data.device)
    total = torch.zeros(counts.shape[1], device=data.device)
    for step, in_step in enumerate(batches.counts):
        if stopped():
            raise Interrupted
        active, width = int(np.count_nonzero(in_step)), int(in_step.max())
        p, g, v = (first_models(each, active) for each in (layers, gradients, velocities))
        x, y = data.batch(ids[step, :active, :width].flatten())
        n = counts[step, :active, None]
        share = (position[:width] < n) / n  # [active, width], 0 in the padding
        loss = write_gradients(p, g, x.reshape(active, width, -1), y.view(active, width), share)
        total[:active] += loss * n[:, 0]
        for value, gradient, velocity in zip(*map(flat, (p, g, v)), strict=True):
            ops.sgd_step_(
                value.flatten(1),
                gradient.flatten(1),
                velocity.flatten(1) if sgd.momentum else None,
                lr=sgd.lr,
                momentum=sgd.momentum,
                weight_decay=sgd.weight_decay,
            )
    return total / counts.sum(dim=0)


def first_models(layers: list[Stack], count: int) -> list[Stack]:
    return [layer.each(lambda p: p[:count]) for layer in layers]


def flat(layers: list[Stack]) -> list[Tensor]:
    return [tensor for layer in layers for tensor in layer.tensors]


def stacks(start: dict[str, Tensor], chain: Chain, count: int) -> list[Stack]:
    """`count` models that begin with the parameters `start`."""

    def copies(name: str) -> Tensor:
        return start[name].expand(count, *start[name].shape).clone()

    return [
        Stack(copies(layer.weight), copies(layer.bias) if layer.bias else None, layer.relu)
        for layer in chain
    ]


def rows_of(layers: list[Stack], chain: Chain, layout: Layout) -> Tensor:  # [k, trainable]
    """Each model's parameters in the order of an arena row."""
    names = [name for layer in chain for name in (layer.weight, layer.bias) if name]
    ends = dict(zip(names, flat(layers), strict=True))
    rows = ends[names[0]].new_zeros(len(ends[names[0]]), layout.trainable)
    for slot in layout.parameters:
        rows[:, slot.offset : slot.end] = ends[slot.name].flatten(1)
    return rows


def train_stacked(
    training: CohortTraining, clients: np.ndarray, t: int, on_client: OnClient = lambda client: None
) -> Tensor:  # [K]
    """train_cohort where the path is stacked: `clients` into rows 0..K-1; their mean losses."""
    server, data, samples = training.server, training.data, training.samples
    sgd, chain = training.local.optimiser, training.path.chain
    if not isinstance(sgd, Sgd) or chain is None:
        raise ValueError(f"train_stacked: this must train otherwise ({training.path})")
    losses = torch.zeros(len(clients), device=data.device)
    sizes = [len(samples[client]) for client in clients]
    blocks = make_blocks(sizes)
    trainers = dealt([sum(sizes[row] for row in rows) for rows in blocks])
    mine = [block for block in range(len(blocks)) if trainers[block] == ranks.rank()]

    def work(lane: Lane, block: int) -> None:
        rows = torch.tensor(blocks[block], device=data.device)
        mine = [int(clients[row]) for row in blocks[block]]
        start = {slot.name: slot.view(server.data[0]) for slot in server.layout.parameters}
        layers = stacks(start, chain, len(mine))
        with failures_named(training, t, mine):
            own = [samples[client] for client in mine]
            batches = make_batches(own, mine, training.local, t)
            losses[rows] = train_block(layers, data, batches, sgd, training.lanes.stopped)
        training.cohort.data.index_copy_(0, rows, rows_of(layers, chain, server.layout))

    with ranks.same_fate():
        for block, _ in training.lanes.run(work, mine):
            for row in blocks[block]:
                on_client(int(clients[row]))
    of_rows = {row: trainers[block] for block, rows in enumerate(blocks) for row in rows}
    of_clients = [of_rows[row] for row in range(len(clients))]
    losses = meet(training, of_clients, losses)
    tell_of_others(clients, of_clients, on_client)
    check_finite(training, t, clients, losses)
    return losses


def make_blocks(sizes: list[int]) -> list[list[int]]:
    """Rows of clients that train together, the larger client first in each block.

    At least two blocks, for two lanes; dealt in turn, so that the large clients are spread.
    """
    by_size = sorted(range(len(sizes)), key=lambda row: -sizes[row])
    count = max(min(2, len(sizes)), math.ceil(len(sizes) / BLOCK))
    return [by_size[first::count] for first in range(count)]
