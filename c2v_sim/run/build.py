"""What a run is made of: settings → data set, federation, and the name of a new directory."""

import dataclasses
import hashlib
import socket
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from c2v_sim.config import RunConfig
from c2v_sim.data.dataset import Dataset
from c2v_sim.data.federation import Federation
from c2v_sim.data.load import load_dataset
from c2v_sim.data.partition import Partition, make_partition
from c2v_sim.run.manifest import versions
from c2v_sim.system import ranks
from c2v_sim.system.errors import ConfigError
from c2v_sim.system.settings import Affects, names_affecting

HELD_OUT = "held_out.npz"  # beside a run's partition, where clients never train


def load_data(config: RunConfig) -> Dataset:
    """The data set that `config` names."""
    return load_dataset(
        config.dataset,
        data_dir=Path(config.data_dir) if config.data_dir else None,
        require_real_data=config.require_real_data,
        train_size=config.train_size or None,
        test_size=config.test_size or None,
        sample_fraction=config.sample_fraction,
        min_samples=config.min_samples,
        train_fraction=config.train_fraction,
        seed=config.seed,
    )


def build_federation(config: RunConfig, saved: Path | None = None) -> tuple[Federation, RunConfig]:
    """Load the data and deal it to clients; `saved` is the partition of a run to be resumed."""
    dataset = load_data(config)
    if config.clients_per_domain:
        clients = config.clients_per_domain * len(dataset.domain_names)
        config = dataclasses.replace(config, clients=max(1, clients))
    if saved is not None:
        held = Partition.load(saved.with_name(HELD_OUT)) if config.hold_out_clients else None
        return Federation(dataset, Partition.load(saved), held), config
    partition = make_partition(
        config.partition,
        dataset.y_train.numpy(),
        dataset.y_test.numpy(),
        clients=config.clients or None,
        seed=config.seed,
        alpha=config.alpha,
        lda=config.lda,
        shards_per_client=config.shards_per_client,
        domain_train=_array(dataset.domain_train),
        domain_test=_array(dataset.domain_test),
        clients_per_domain=config.clients_per_domain or None,
        natural_train=_array(dataset.client_train),
        natural_test=_array(dataset.client_test),
    )
    config = dataclasses.replace(config, clients=partition.clients)
    federation = Federation(dataset, partition)
    if not config.hold_out_clients:
        return federation, config
    try:
        return federation.holding_out(config.hold_out_clients, config.seed), config
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _array(tensor: Tensor | None) -> np.ndarray | None:
    return None if tensor is None else tensor.numpy()


def new_path(folder: str, dataset: str, kind: str, seed: int) -> Path:
    """<folder>/<time>-<dataset>-<kind>-<seed>, with a counter where that exists."""
    time = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    name = "".join(c if c.isalnum() or c in "-_" else "-" for c in dataset).strip("-")
    stem = f"{time}-{name}-{kind}-{seed}"
    path, count = Path(folder) / stem, 1
    while path.exists():
        count += 1
        path = path.with_name(f"{stem}-{count}")
    return path


def check_alike(federation: Federation, config: RunConfig, device: torch.device) -> None:
    """Refuse ranks that would not train the same: other settings, versions, data or devices."""
    bits = Affects.RESULT | Affects.BITS
    settings = {name: getattr(config, name) for name in names_affecting(RunConfig, bits)}
    facts: dict[str, object] = {f"version of {name}": v for name, v in versions().items()}
    facts |= {"source of c2v_sim": source_hash(), "device": device.type}
    facts |= {"data": f"{federation.dataset.name} ({federation.dataset.sha256[:12]})"}
    facts |= {"partition": federation.partition.sha256[:12]} | settings
    everyone = ranks.gather((socket.gethostname(), facts))
    host, first = everyone[0]
    for rank, (other, own) in enumerate(everyone):
        differing = [
            f"{k}: {own[k]} there, {first[k]} on rank 0" for k in first if own[k] != first[k]
        ]
        if differing:
            raise ConfigError(
                f"rank {rank} on {other} would not train the same as rank 0 on {host} "
                f"({'; '.join(differing)}); give all hosts the same"
            )


def source_hash() -> str:
    """Of the package's Python files: two checkouts may have the same version."""
    digest = hashlib.sha256()
    root = Path(__file__).resolve().parents[1]
    for file in sorted(root.rglob("*.py")):
        digest.update(str(file.relative_to(root)).encode() + file.read_bytes())
    return digest.hexdigest()[:12]
