"""Stage 4, training DSA-IGN: embeddings and a partition -> a trained network and its loss curve.

GLOBAL: every client uploads min(128, N_i) pairs (D, L) once; the server trains on them for E
epochs, shuffled anew in each. FEDERATED: ceil(E / 10) rounds of FedAvg, each with a tenth of the
clients, 10 local epochs and a fresh Adam, by the arena and cohort code of ordinary training.

A point of the curve is the mean of the four losses over an epoch (GLOBAL) or a round (FEDERATED),
in the order of dsa_ign.LOSSES. All randomness comes from (seed, epoch) or (seed, round, client),
so a run that goes on from its checkpoint has the bits of one that was never stopped.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from c2v_sim.aggregation import average, shares
from c2v_sim.algorithms import Algorithm
from c2v_sim.arena import Arena, layout_of
from c2v_sim.atomic import write_atomically
from c2v_sim.cohort import LocalTraining, TrainingError, batch_bounds, train_cohort
from c2v_sim.config import ConfigError
from c2v_sim.dsa_ign import LOSSES, IndexNetwork, build_network, loss_weights, losses
from c2v_sim.index_config import IndexConfig
from c2v_sim.lanes import Lanes, lane_count
from c2v_sim.local_client import LocalClient
from c2v_sim.optimisers import Adam
from c2v_sim.partition import Partition
from c2v_sim.sampling import cohort_size
from c2v_sim.seeding import INDEX_COHORT, INDEX_SHUFFLE, UPLOAD, rng, torch_seed
from c2v_sim.threads import intra_op_threads

SECONDS_BETWEEN_CHECKPOINTS = 30.0
# Settings that may differ from the checkpoint's: they do not decide the bits on the way.
FREE_ON_RESUME = ("lanes", "device", "epochs", "patience", "tolerance")


class Pairs:
    """(sample embedding, label embedding) by sample id, on a device: what cohort.py trains on."""

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


@dataclass
class Training:
    """The state of a training: what a checkpoint holds."""

    parameters: Tensor  # [1, P], an arena row
    moments: Tensor  # [2, P], Adam's (GLOBAL; a client's Adam does not outlive its round)
    curve: list[list[float]] = field(default_factory=list)  # a point an epoch or round

    def plateaued(self, config: IndexConfig) -> bool:
        """True if the last `patience` points brought the total no further down."""
        if config.patience == 0 or len(self.curve) <= config.patience:
            return False
        weights = loss_weights(config.omit_loss)
        totals = [sum(w * v for w, v in zip(weights, p, strict=True)) for p in self.curve]
        recent, before = totals[-config.patience :], totals[: -config.patience]
        return min(recent) > min(before) - config.tolerance

    def finished(self, config: IndexConfig) -> bool:
        return len(self.curve) >= config.points or self.plateaued(config)


OnPoint = Callable[[Training], None]


def train_network(
    pairs: Pairs,
    partition: Partition,
    config: IndexConfig,
    *,
    checkpoint: Path | None = None,
    identity: str = "",
    on_point: OnPoint = lambda training: None,
) -> tuple[IndexNetwork, list[list[float]]]:
    """The trained network in eval mode, and the curve [points, 4].

    `checkpoint` is read if it exists and written on the way; `identity` names data and partition,
    so that a checkpoint of others is refused. `on_point` is called after each epoch or round.
    """
    network = build_network(config.decoder, config.hidden, config.dropout, config.seed)
    layout = layout_of(network)
    server = Arena(layout, 1, pairs.device)
    server.read(network, 0)
    training = Training(server.data, torch.zeros(2, layout.trainable, device=pairs.device))
    settings = _fingerprint(config, identity)
    if checkpoint is not None and checkpoint.exists():
        load_training(checkpoint, training, settings)
    saved = time.monotonic()

    def after_point() -> None:
        nonlocal saved
        done = training.finished(config)
        if checkpoint and (done or time.monotonic() - saved > SECONDS_BETWEEN_CHECKPOINTS):
            save_training(checkpoint, training, settings)
            saved = time.monotonic()
        on_point(training)

    if not training.finished(config):
        train = train_global if config.strategy == "global" else train_federated
        train(network, server, training, pairs, partition, config, after_point)
    network = build_network(config.decoder, config.hidden, config.dropout, config.seed)
    network.load_state_dict(server.state_dict(0))
    return network.to(pairs.device).eval(), training.curve


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
    after_point: Callable[[], None],
) -> None:
    """Train server row 0 on the uploaded pairs, epoch after epoch."""
    client = LocalClient(network, server.layout, pairs.device)
    row, gradients = client.model.bind(server.data[0], server.integers[0]), client.gradients
    pool = uploads(partition, config)
    bounds = batch_bounds(len(pool), config.batch_size)
    adam = resumable_adam(row, gradients, training, config, steps=len(bounds))
    weights = torch.tensor(loss_weights(config.omit_loss), device=pairs.device)
    with intra_op_threads(config.threads):
        network.train()
        while not training.finished(config):
            epoch = len(training.curve) + 1
            client.generator.manual_seed(torch_seed(config.seed, epoch, 0))
            order = rng(config.seed, INDEX_SHUFFLE, epoch).permutation(len(pool))
            shuffled = torch.from_numpy(pool[order]).to(pairs.device)
            total = torch.zeros(len(LOSSES), device=pairs.device)
            for begin, end in bounds:
                parts = losses(network, *pairs.batch(shuffled[begin:end]))
                (parts @ weights).backward()
                adam.step()
                gradients.zero_()
                total += parts.detach() * (end - begin)
            training.curve.append(_point(total / bounds[-1][1], f"epoch {epoch}", config))
            after_point()


def resumable_adam(
    row: Tensor, gradients: Tensor, training: Training, config: IndexConfig, steps: int
) -> torch.optim.Adam:
    """torch's fused Adam on the row, with the moments of `training` and `steps` an epoch."""
    parameter = nn.Parameter(row)  # the same memory
    parameter.grad = gradients
    adam = torch.optim.Adam([parameter], lr=config.index_lr, fused=True)
    done = torch.tensor(float(len(training.curve) * steps), device=row.device)
    first, second = training.moments
    adam.state[parameter] = {"step": done, "exp_avg": first, "exp_avg_sq": second}
    return adam


class IndexLoss(Algorithm):
    """FedAvg on the weighted sum of the four losses; `sums` [M, 4] adds each up by client."""

    name = "index network"

    def __init__(self, weights: list[float], clients: int, device: torch.device) -> None:
        self.weights = torch.tensor(weights, device=device)
        self.sums = torch.zeros(clients, len(LOSSES), device=device)

    def local_loss(self, client: LocalClient, d: Tensor, label: Tensor) -> Tensor:
        parts = losses(client.module, d, label)  # type: ignore[arg-type]
        self.sums[client.id] += parts.detach() * len(d)
        return parts @ self.weights


def train_federated(
    network: IndexNetwork,
    server: Arena,
    training: Training,
    pairs: Pairs,
    partition: Partition,
    config: IndexConfig,
    after_point: Callable[[], None],
) -> None:
    """FedAvg over the clients, round after round, into server row 0."""
    size = cohort_size(config.participation, partition.clients)
    cohort = Arena(server.layout, size, pairs.device)
    lanes = Lanes(
        network, server.layout, min(size, lane_count(config.lanes, pairs.device)), pairs.device
    )
    algorithm = IndexLoss(loss_weights(config.omit_loss), partition.clients, pairs.device)
    how = LocalTraining(
        epochs=config.local_epochs,
        batch_size=config.batch_size,
        optimiser=Adam(config.index_lr),
        seed=config.seed,
        stream=INDEX_SHUFFLE,
    )
    try:
        while not training.finished(config):
            t = len(training.curve) + 1
            clients = index_cohort(config.seed, t, partition.clients, size)
            algorithm.sums.zero_()
            train_cohort(lanes, server, cohort, pairs, partition.train, clients, how, algorithm, t)
            average(server, cohort, shares(torch.from_numpy(partition.sizes[clients])))
            seen = sum(batch_bounds(n, config.batch_size)[-1][1] for n in partition.sizes[clients])
            mean = algorithm.sums[torch.from_numpy(clients)].sum(0) / (seen * config.local_epochs)
            training.curve.append(_point(mean, f"round {t}", config))
            after_point()
    finally:
        lanes.close()


def index_cohort(seed: int, round: int, clients: int, k: int) -> np.ndarray:
    """k of `clients` ids, uniform without replacement, ascending."""
    return np.sort(rng(seed, INDEX_COHORT, round).choice(clients, k, replace=False))


def _point(mean: Tensor, when: str, config: IndexConfig) -> list[float]:
    values = mean.tolist()
    if not all(map(math.isfinite, values)):
        shown = ", ".join(f"{n} {v:.3g}" for n, v in zip(LOSSES, values, strict=True))
        raise TrainingError(
            f"index network, {when}: a loss is not finite ({shown}); "
            f"lower index_lr (now {config.index_lr})"
        )
    return values


def _fingerprint(config: IndexConfig, identity: str) -> dict[str, str]:
    """Everything that decides the bits of a training, to recognise a foreign checkpoint."""
    settings = {k: json.dumps(v) for k, v in asdict(config).items() if k not in FREE_ON_RESUME}
    return settings | {"data": identity}


def save_training(path: Path, training: Training, settings: dict[str, str]) -> None:
    """Write the checkpoint: whole, or not at all."""
    tensors = {"parameters": training.parameters.cpu(), "moments": training.moments.cpu()}
    about = settings | {"curve": json.dumps(training.curve)}
    write_atomically(path, lambda p: save_file(tensors, str(p), metadata=about))


def load_training(path: Path, training: Training, settings: dict[str, str]) -> None:
    """Put `training` back to the saved state; a checkpoint of another training is refused."""
    try:
        with safe_open(str(path), framework="pt") as file:
            about = file.metadata() or {}
            differing = [name for name, value in settings.items() if about.get(name) != value]
            if differing:
                values = [f"{n}: {about.get(n)} there, {settings[n]} now" for n in differing]
                shown = "; ".join(values)
                raise ConfigError(f"the checkpoint {path} is of another training ({shown})")
            training.parameters.copy_(file.get_tensor("parameters"))
            training.moments.copy_(file.get_tensor("moments"))
            training.curve[:] = json.loads(about["curve"])
    except (SafetensorError, KeyError, RuntimeError, OSError) as error:
        raise ValueError(f"the checkpoint {path} cannot be read: {error}") from error
