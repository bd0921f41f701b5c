"""What an index will cost, before it is built: a few steps here and now, measured and multiplied.

    embed    samples × seconds per sample; 0 where the embeddings are cached
    train    pairs that DSA-IGN sees in all its epochs × seconds per pair
    average  samples × a third of the seconds per pair: forward alone

A training that may stop on a plateau is counted to its last epoch, so this is the most it takes.
"""

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from c2v_sim.data.federation import Federation
from c2v_sim.data.partition import Partition
from c2v_sim.index.build import cache_folder, cache_path, index_embeddings
from c2v_sim.index.config import IndexConfig
from c2v_sim.index.encoders.embed import embed_dataset, is_cached
from c2v_sim.index.encoders.encoder import WIDTH, Encoder
from c2v_sim.index.training import Pairs, train_network
from c2v_sim.system.machine import choose_device, usable_cores
from c2v_sim.system.settings import Affects, values_affecting
from c2v_sim.system.text import duration
from c2v_sim.training.sampling import cohort_size

SAMPLES, POINTS = 256, 3  # of the probes

Paces = dict[tuple, float]  # seconds per pair, by the settings that decide them


@dataclass(frozen=True)
class IndexCost:
    """Expected seconds of an index that is to be built."""

    samples: int
    settings: IndexConfig
    embed: float
    train: float
    average: float

    @property
    def total(self) -> float:
        return self.embed + self.train + self.average

    def words(self) -> str:
        """`about 21 s: embed 12,800 samples 2 s, train DSA-IGN for 5 epochs 16 s, average 3 s`."""
        unit = "epochs" if self.settings.strategy == "global" else "rounds"
        stages = {f"embed {self.samples:,} samples": self.embed}
        if self.settings.index == "dsa-ign":
            stages[f"train DSA-IGN for {self.settings.points} {unit}"] = self.train
            stages["average"] = self.average
        listed = ", ".join(f"{name} {shown(seconds)}" for name, seconds in stages.items())
        least = "at most about" if self.settings.patience else "about"
        return f"{least} {shown(self.total)}: {listed}"


def shown(seconds: float) -> str:
    return duration(seconds) if seconds >= 0.5 else "under 1 s" if seconds else "(cached) 0 s"


def index_cost(
    federation: Federation, settings: IndexConfig, data_dir: Path | str, paces: Paces | None = None
) -> IndexCost | None:
    """The cost of the index of these settings; None if it is cached. `paces`: known already."""
    limited = federation.limited(settings.max_samples, settings.seed)
    encoder, embed = settings.make_encoder(), 0.0
    if is_cached(limited.dataset, encoder, cache_folder(data_dir) / "embeddings"):
        embeddings = index_embeddings(federation, settings, data_dir)
        if cache_path(federation, settings, embeddings, data_dir).exists():
            return None
    else:
        embed = embed_seconds(limited, encoder)
    samples, train, average = len(limited.dataset.y_train), 0.0, 0.0
    if settings.index == "dsa-ign":
        paces, kind = {} if paces is None else paces, values_affecting(settings, Affects.PACE)
        if kind not in paces:
            paces[kind] = pair_seconds(settings)
        train, average = paces[kind] * pairs_trained(limited, settings), paces[kind] * samples / 3
    return IndexCost(samples, settings, embed, train, average)


def embed_seconds(federation: Federation, encoder: Encoder) -> float:
    """Of all samples, from a few."""
    few = federation.dataset.first("train", SAMPLES)
    begin = time.perf_counter()
    embed_dataset(few, encoder, cache=False, progress=False)
    each = (time.perf_counter() - begin) / len(few.y_train)
    return each * len(federation.dataset.y_train)


def pairs_trained(federation: Federation, settings: IndexConfig) -> float:
    """Pairs that DSA-IGN sees in its whole training."""
    sizes = federation.partition.sizes
    if settings.strategy == "global":
        return settings.epochs * float(np.minimum(sizes, settings.upload).sum())
    cohort = cohort_size(settings.participation, len(sizes))
    return settings.points * settings.local_epochs * cohort * float(sizes.mean())


def pair_seconds(settings: IndexConfig) -> float:
    """Seconds that DSA-IGN takes for a pair: a step per point of a training with random pairs, or
    per lane and point (federated). The first point warms up."""
    clients = 1 if settings.strategy == "global" else usable_cores()
    each = settings.batch_size
    random = torch.Generator().manual_seed(0)
    images, labels = (torch.randn(n, WIDTH, generator=random) for n in (clients * each, 10))
    y = torch.arange(clients * each) % 10
    pairs = Pairs(images, labels, y, choose_device(settings.device))
    train = tuple(np.split(np.arange(clients * each), clients))
    partition = Partition(train, tuple(np.arange(0) for _ in train), "a probe")
    few = dataclasses.replace(
        settings,
        epochs=POINTS,
        local_epochs=1,
        participation=1.0,
        upload=each,
        lanes=0,
        patience=0,
    )
    clock: list[float] = []
    train_network(
        pairs, partition, few, on_point=lambda training: clock.append(time.perf_counter())
    )
    return (clock[-1] - clock[0]) / ((POINTS - 1) * clients * each)
