"""Stage 4, training DSA-IGN: embeddings and a partition -> a trained network and its loss curve.

GLOBAL: every client uploads min(128, N_i) pairs (D, L) once; the server trains on them for E
epochs, shuffled anew in each. FEDERATED: ceil(E / 10) rounds of FedAvg, each with a tenth of the
clients, 10 local epochs and a fresh Adam, by the arena and cohort code of ordinary training; on a
GPU many clients stacked (index/stacked.py).

A point of the curve is the mean of the four losses over an epoch (GLOBAL) or a round (FEDERATED),
in the order of dsa_ign.LOSSES. All randomness comes from (seed, epoch) or (seed, round, client),
so a run that goes on from its checkpoint has the bits of one that was never stopped. A checkpoint
may be of the middle of an epoch (GLOBAL), which can take minutes.
"""

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from c2v_sim.data.partition import Partition
from c2v_sim.index.checkpoint import Checkpoints, Training, fingerprint, load_training
from c2v_sim.index.config import IndexConfig
from c2v_sim.index.dsa_ign import LOSSES, IndexNetwork, build_network, loss_weights, losses
from c2v_sim.index.stacked import IndexLoss, choose_path
from c2v_sim.system import ranks
from c2v_sim.system.errors import Interrupted, TrainingError
from c2v_sim.system.machine import intra_op_threads
from c2v_sim.system.seeding import INDEX_COHORT, INDEX_SHUFFLE, UPLOAD, rng, torch_seed
from c2v_sim.training.aggregation import average, shares
from c2v_sim.training.arena import Arena, layout_of
from c2v_sim.training.cohort import train_cohort
from c2v_sim.training.lanes import LANES, Lanes, lane_count
from c2v_sim.training.local_training import CohortTraining, LocalTraining, batch_bounds
from c2v_sim.training.memory import lane_bytes
from c2v_sim.training.optimisers import Adam, adam_step
from c2v_sim.training.sampling import cohort_size
from c2v_sim.training.stacked import ranks_of_clients, train_stacked


class Pairs:
    """(sample embedding, label embedding) by sample id, on a device: what a cohort trains on."""

    def __init__(self, images: Tensor, labels: Tensor, y: Tensor, device: torch.device) -> None:
        """images [N, 512], labels [K, 512] by class, y [N] the class of each sample."""
        if images.dim() != 2 or labels.dim() != 2 or images.shape[1] != labels.shape[1]:
            raise ValueError(
                "Pairs: images must be [N, D] and labels [K, D], "
                f"got {tuple(images.shape)} and {tuple(labels.shape)}"
            )
        if y.shape != images.shape[:1] or (len(y) and int(y.max()) >= len(labels)):
            raise ValueError(
                f"Pairs: y must be [{len(images)}] classes below {len(labels)}, got "
                f"{tuple(y.shape)}, largest {int(y.max()) if len(y) else 'none'}"
            )
        self.images, self.labels = images.float().to(device), labels.float().to(device)
        self.y, self.device = y.to(device), device

    def batch(self, ids: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        return self.images.index_select(0, ids), self.labels[self.y.index_select(0, ids)]


OnPoint = Callable[[Training], None]


def train_network(
    pairs: Pairs,
    partition: Partition,
    config: IndexConfig,
    *,
    checkpoint: Path | None = None,
    identity: str = "",
    on_point: OnPoint = lambda training: None,
    stop: threading.Event | None = None,
) -> tuple[IndexNetwork, Training]:
    """The trained network in eval mode, and its training with the curve [points, 4].

    `checkpoint` is read if it exists and written on the way; `identity` names data and partition,
    so that a checkpoint of others is refused. `on_point` is called after each epoch or round.
    Once `stop` is set, the step in flight is finished, the checkpoint written, Interrupted raised.
    """
    stop = stop or threading.Event()
    network = build_network(config.decoder, config.hidden, config.dropout, config.seed)
    layout = layout_of(network)
    server = Arena(layout, 1, pairs.device)
    server.read(network, 0)
    moments = torch.zeros(2, layout.trainable, device=pairs.device)
    training = Training(server.data, moments, sums=torch.zeros(len(LOSSES), device=pairs.device))
    settings = fingerprint(config, identity)
    federated = config.strategy == "federated"

    def go_on() -> None:
        if checkpoint is not None and checkpoint.exists():
            load_training(checkpoint, training, settings, layout)

    ranks.from_first(go_on)
    share_training(training)
    checkpoints = Checkpoints(checkpoint if ranks.is_first() else None, training, settings)

    clock = time.perf_counter()

    def count_seconds() -> None:
        nonlocal clock
        before, clock = clock, time.perf_counter()
        training.seconds += clock - before

    def after_step() -> None:
        """`training` is whole: an end if that is wished, or a checkpoint if it is time."""
        count_seconds()
        if ranks.any_of(stop.is_set()) if federated else stop.is_set():
            raise Interrupted
        done = training.step == 0 and training.finished(config)
        checkpoints.save_if_due(anyway=done)
        if training.step == 0:
            on_point(training)

    if not training.finished(config):
        parts = (network, server, training, pairs, partition, config, after_step, stop)
        try:
            if federated:
                train_federated(*parts)
            else:  # one model on one stream of batches: rank 0 alone
                ranks.from_first(lambda: train_global(*parts))
                share_training(training)
        except Interrupted:  # of a federated round in flight only its seconds are in `training`
            count_seconds()
            checkpoints.save()
            raise
    network = build_network(config.decoder, config.hidden, config.dropout, config.seed)
    network.load_state_dict(server.state_dict(0))
    return network.to(pairs.device).eval(), training


def share_training(training: Training) -> None:
    """Every rank has the network, the curve and the seconds of rank 0."""
    training.curve[:], training.seconds = ranks.broadcast((training.curve, training.seconds))
    ranks.share((training.parameters, 0))


def uploads(partition: Partition, config: IndexConfig) -> np.ndarray:
    """Sample ids that the clients upload, client after client."""
    return np.concatenate(
        [
            rng(config.seed, UPLOAD, i).choice(ids, min(config.upload, len(ids)), replace=False)
            for i, ids in enumerate(partition.train)
        ]
    )


def train_global(
    network: IndexNetwork,
    server: Arena,
    training: Training,
    pairs: Pairs,
    partition: Partition,
    config: IndexConfig,
    after_step: Callable[[], None],
    stop: threading.Event,
) -> None:
    """Train server row 0 on the uploaded pairs, epoch after epoch, by the steps of one lane."""
    lane = LANES[pairs.device.type](network, server.layout, pairs.device)
    client, random = lane.client, lane.client.generator
    row = client.model.bind(server.data[0], server.integers[0])
    pool = uploads(partition, config)
    bounds = batch_bounds(len(pool), config.batch_size)
    count = torch.tensor(float(len(training.curve) * len(bounds) + training.step)).to(row.device)
    mean, square = training.moments
    weights = torch.tensor(loss_weights(config.omit_loss), device=pairs.device)

    def step(ids: Tensor) -> None:
        parts = losses(network, *pairs.batch(ids))
        (parts @ weights).backward()
        adam_step(row, client.gradients, mean, square, count, config.index_lr)
        training.sums.add_(parts.detach() * len(ids))

    def one_epoch() -> None:
        epoch = len(training.curve) + 1
        random.manual_seed(torch_seed(config.seed, epoch, 0))
        if training.step:
            training.resume_draws(random, torch_seed(config.seed, epoch, training.step))
        order = rng(config.seed, INDEX_SHUFFLE, epoch).permutation(len(pool))
        shuffled = lane.upload(pool[order])
        for begin, end in bounds[training.step :]:
            lane.step(step, shuffled[begin:end])
            training.step += 1
            if training.step < len(bounds):
                training.random = random.get_state()
                after_step()
        means = training.sums / bounds[-1][1]
        training.curve.append(_point(means, f"epoch {epoch}", config))
        training.step = 0
        training.sums.zero_()
        after_step()

    network.train()
    lane.prepare(1, capturable=True)
    lane.follow()
    try:
        with intra_op_threads(config.threads), lane.working():
            while not training.finished(config):
                one_epoch()
    finally:
        lane.join()


def train_federated(
    network: IndexNetwork,
    server: Arena,
    training: Training,
    pairs: Pairs,
    partition: Partition,
    config: IndexConfig,
    after_round: Callable[[], None],
    stop: threading.Event,
) -> None:
    """FedAvg over the clients, round after round, into server row 0."""
    size, device = cohort_size(config.participation, partition.clients), pairs.device
    cohort = Arena(server.layout, size, device)

    def one_lane() -> int:
        first = torch.zeros(2, dtype=torch.int64, device=device)
        d, label = (t.cpu() for t in pairs.batch(first))
        return lane_bytes(network, lambda: losses(network, d, label), 2, config.batch_size)

    path = choose_path(device, size)
    together = min(size, path.block) or 1  # clients in a lane's computation
    count = lane_count(config.lanes, device, lambda: together * one_lane(), size)
    lanes = Lanes(network, server.layout, count, device, stop)
    objective = IndexLoss(loss_weights(config.omit_loss), partition.clients, device)
    cohorts = CohortTraining(
        lanes=lanes,
        server=server,
        cohort=cohort,
        data=pairs,
        samples=partition.train,
        local=LocalTraining(
            epochs=config.local_epochs,
            batch_size=config.batch_size,
            optimiser=Adam(config.index_lr),
            seed=config.seed,
            stream=INDEX_SHUFFLE,
        ),
        objective=objective,
        only_averaged=True,
        path=path,
    )
    train = train_stacked if path.stacked else train_cohort
    try:
        while not training.finished(config):
            t = len(training.curve) + 1
            clients = index_cohort(config.seed, t, partition.clients, size)
            objective.sums.zero_()
            train(cohorts, clients, t)
            average(server, cohort, shares(torch.from_numpy(partition.sizes[clients])))
            seen = sum(batch_bounds(n, config.batch_size)[-1][1] for n in partition.sizes[clients])
            trainers = ranks_of_clients(partition.sizes[clients].tolist(), path.block)
            sums = ranks.pick(objective.sums[torch.from_numpy(clients)], trainers)
            mean = sums.sum(0) / (seen * config.local_epochs)
            training.curve.append(_point(mean, f"round {t}", config))
            after_round()
    finally:
        lanes.close()


def index_cohort(seed: int, t: int, clients: int, k: int) -> np.ndarray:
    """k of `clients` ids for round t, uniform without replacement, ascending."""
    return np.sort(rng(seed, INDEX_COHORT, t).choice(clients, k, replace=False))


def _point(mean: Tensor, when: str, config: IndexConfig) -> list[float]:
    values = mean.tolist()
    if not all(map(math.isfinite, values)):
        shown = ", ".join(f"{n} {v:.3g}" for n, v in zip(LOSSES, values, strict=True))
        raise TrainingError(
            f"index network, {when}: a loss is not finite ({shown}); "
            f"lower index_lr (now {config.index_lr})"
        )
    return values
