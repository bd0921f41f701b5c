"""How long a sweep will take: a few steps of every kind of run and index, measured and multiplied.

A kind of run (data, model, algorithm, case study iii, batch size) is measured by two real rounds
of a small federation, one client a lane with two batches of samples, as many lanes as there will
be cells side by side, so that what they take from one another is in the measurement.

    cell   = rounds × (k N/M epochs × seconds a sample + aggregation) + evaluations × test samples
    index  = samples to embed / rate + steps of DSA-IGN × seconds a step
    sweep  = sum of the indices + the end of the last cell, started as places become free
"""

import dataclasses
import heapq
import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from c2v_sim.config import FIELDS, RunConfig
from c2v_sim.data.dataset import Dataset
from c2v_sim.data.federation import Federation
from c2v_sim.data.load import default_data_dir
from c2v_sim.data.partition import Partition
from c2v_sim.data.text_windows import Windows
from c2v_sim.index.cache import identity, index_embeddings
from c2v_sim.index.client_index import ClientIndex, federation_facts
from c2v_sim.index.config import IndexConfig, index_settings
from c2v_sim.index.encoders.embed import WIDTH, embed_dataset, is_cached
from c2v_sim.index.training import Pairs, train_network
from c2v_sim.run.__main__ import build_federation
from c2v_sim.run.files import ROUNDS
from c2v_sim.simulator.build import trains_stacked
from c2v_sim.simulator.evaluation import BATCH
from c2v_sim.simulator.simulator import Simulator
from c2v_sim.sweep.file import Cell, cell_folder
from c2v_sim.sweep.jobs import SLEEP_WHILE_WAITING, python
from c2v_sim.system.machine import choose_device
from c2v_sim.training.sampling import cohort_size

KIND = ["dataset", "model", "norm", "algorithm", "batch_size", "augment", "index", "clients"]
KIND += ["train_size", "clients_per_domain", "participation", "partition"]


def start_seconds() -> float:
    """Seconds of a process before its first step."""
    begin = time.perf_counter()
    subprocess.run([*python(), "-c", "import c2v_sim.run"], check=True)
    return time.perf_counter() - begin


@dataclass(frozen=True)
class Pace:
    """Seconds of one lane."""

    sample: float  # trained
    aggregation: float
    test_sample: float


@dataclass(frozen=True)
class Estimate:
    """Seconds of every cell and of every index that is still to be built."""

    cells: dict[str, float]
    indices: dict[str, float]

    def total(self, at_once: int, places: list[int]) -> float:
        """`places`: those of each cell (sweep_runner.places_of)."""
        free = [0.0] * at_once  # when each becomes free
        for seconds, count in zip(self.cells.values(), places, strict=True):
            heapq.heapreplace(free, free[0] + seconds / count)
        return sum(self.indices.values()) + max(free)


def estimate(out: Path, cells: list[Cell], users: dict[str, list[Cell]], at_once: int) -> Estimate:
    """`users`: the cells of each index that is to be built (sweep_runner.index_users)."""
    paces: dict[tuple, Pace] = {}
    steps: dict[tuple, float] = {}
    times, indices, start = {}, {}, start_seconds()
    first_user = {using[0].name: key for key, using in users.items()}
    for cell in cells:
        federation, config = build_federation(cell.config)
        kind = ("local" in config.improve, *(getattr(config, name) for name in KIND))
        if kind not in paces:
            paces[kind] = probe(federation, config, at_once)
        file = cell_folder(out, cell) / ROUNDS
        done = file.read_bytes().count(b"\n") if file.exists() else 0
        times[cell.name] = start + cell_seconds(federation, config, paces[kind], done)
        if cell.name in first_user:
            key = first_user[cell.name]
            indices[key] = start + index_seconds(federation, config, steps)
    return Estimate(times, indices)


def cell_seconds(federation: Federation, config: RunConfig, pace: Pace, done: int) -> float:
    """Seconds of the rounds after `done`."""
    partition = federation.partition
    cohort = cohort_size(config.participation, partition.clients)
    trained = cohort * partition.sizes.mean() * config.local_epochs * pace.sample
    rounds = config.rounds - done
    tests = config.rounds // config.eval_every - done // config.eval_every
    tests += config.rounds % config.eval_every > 0
    tested = tests * len(federation.dataset.y_test) * pace.test_sample
    return rounds * (trained + pace.aggregation) + tested


def probe(federation: Federation, config: RunConfig, lanes: int) -> Pace:
    """Two rounds, measured in the second: then every client has a past."""
    whole = federation.partition
    cohort = cohort_size(config.participation, whole.clients)
    stacked = trains_stacked(federation, config)  # the cohort trains as one computation
    lanes = 1 if stacked else min(lanes, whole.clients)
    count = cohort if stacked else lanes
    small = few_clients(federation, count, 2 * config.batch_size, lanes * BATCH)
    local = ("local",) if "local" in config.improve else ()
    few: dict[str, Any] = {"participation": 1.0, "clients": count, "lanes": lanes, "rounds": 2}
    few |= {"local_epochs": 1, "eval_every": 1, "lr": 1e-6}  # whatever the cell's, no overflow
    config = dataclasses.replace(config, improve=local, **few)
    simulator = Simulator(small, config)
    try:
        if config.needs_client_index:
            simulator.use_index(made_up_index(small, simulator))
        if simulator.regulariser is not None:  # as many clients as there really are
            width = simulator.regulariser.index.shape[1]
            simulator.regularise_by(torch.rand(whole.clients, width))
        seconds = simulator.run().final.seconds
    finally:
        simulator.close()
    return Pace(
        sample=seconds["train"] * lanes / small.partition.sizes.sum(),
        aggregation=seconds["aggregate"] * cohort / count,
        test_sample=seconds["evaluate"] * lanes / len(small.dataset.y_test),
    )


def few_clients(federation: Federation, count: int, most: int, tests: int) -> Federation:
    """The `count` largest clients with at most `most` samples each, and `tests` test samples."""
    sizes = federation.partition.sizes
    largest = np.sort(np.argsort(-sizes, kind="stable")[:count])
    train = tuple(federation.partition.train[i][:most] for i in largest)
    tests = min(tests, len(federation.dataset.y_test))
    test = tuple(np.array_split(np.arange(tests), count))
    return Federation(cut(federation.dataset, "test", tests), Partition(train, test, "a probe"))


def cut(dataset: Dataset, split: str, size: int) -> Dataset:
    """The first `size` samples of a split."""
    new = {}
    for name in (f"{part}_{split}" for part in ("x", "y", "domain", "client")):
        array = getattr(dataset, name)
        if array is not None:
            windows = isinstance(array, Windows)
            new[name] = array.take(torch.arange(size)) if windows else array[:size]
    return dataclasses.replace(dataset, **new)


def made_up_index(federation: Federation, simulator: Simulator) -> ClientIndex:
    regulariser = simulator.regulariser
    columns = WIDTH if regulariser is None else regulariser.index.shape[1]
    clients = federation.partition.clients
    return ClientIndex(
        feature=torch.rand(clients, columns),
        label=torch.zeros(clients, 0),
        sizes=torch.from_numpy(federation.partition.sizes),
        label_counts=federation.label_counts,
        domains=None,
        provenance={"federation": federation_facts(federation)},
    )


# ---- indices --------------------------------------------------------------------------------


def index_seconds(federation: Federation, config: RunConfig, steps: dict[tuple, float]) -> float:
    """Seconds until the index of `config` is there; 0 if it is cached. `steps`: seconds a pair."""
    settings = index_settings(config)
    limited = federation.limited(settings.max_samples, settings.seed)
    chosen = limited.dataset
    folder = Path(config.data_dir or default_data_dir()).expanduser()
    encoder = settings.make_encoder()
    if is_cached(chosen, encoder, folder / "embeddings"):
        embeddings = index_embeddings(federation, settings, config.data_dir)
        name = identity(federation, embeddings, settings)
        if (folder / "indices" / f"{name}.safetensors").exists():
            return 0.0
        seconds = 0.0
    else:
        few = cut(chosen, "train", min(256, len(chosen.y_train)))
        begin = time.perf_counter()
        embed_dataset(few, encoder, cache=False, progress=False)
        rate = (time.perf_counter() - begin) / len(few.y_train)
        seconds = rate * len(chosen.y_train)
    if settings.index != "dsa-ign":
        return seconds
    kind = (settings.strategy, settings.decoder, settings.dropout > 0)
    if kind not in steps:
        steps[kind] = as_an_index_is_built(pair_seconds, settings)
    return seconds + steps[kind] * (pairs_trained(limited, settings) + len(chosen.y_train) / 3)


def pairs_trained(federation: Federation, settings: IndexConfig) -> float:
    """Pairs that DSA-IGN sees in its whole training."""
    sizes = federation.partition.sizes
    if settings.strategy == "global":
        return settings.epochs * float(np.minimum(sizes, settings.upload).sum())
    cohort = cohort_size(settings.participation, len(sizes))
    return settings.points * settings.local_epochs * cohort * float(sizes.mean())


def as_an_index_is_built(measure: Callable[[IndexConfig], float], settings: IndexConfig) -> float:
    """`measure(settings)` in a process with the environment of those that build indices."""
    before = dict(os.environ)
    os.environ.update(SLEEP_WHILE_WAITING | before)
    try:
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            return process.submit(measure, settings).result()
    finally:
        os.environ.clear()
        os.environ.update(before)


def pair_seconds(settings: IndexConfig) -> float:
    """Seconds that DSA-IGN takes for a pair, from two points of a training with random pairs."""
    clients, each = 4, settings.batch_size
    random = torch.Generator().manual_seed(0)
    images, labels = (torch.randn(n, WIDTH, generator=random) for n in (clients * each, 10))
    y = torch.arange(clients * each) % 10
    pairs = Pairs(images, labels, y, choose_device(settings.device))
    train = tuple(np.split(np.arange(clients * each), clients))
    partition = Partition(train, tuple(np.arange(0) for _ in train), "a probe")
    few = dataclasses.replace(
        settings, epochs=2, local_epochs=1, participation=1.0, upload=each, lanes=0
    )
    clock: list[float] = []
    train_network(
        pairs, partition, few, on_point=lambda training: clock.append(time.perf_counter())
    )
    return (clock[1] - clock[0]) / (clients * each)


def differing_settings(cells: list[Cell]) -> dict[str, str]:
    """Cell -> its settings that are not those of all cells."""
    varying = [n for n in FIELDS if len({getattr(cell.config, n) for cell in cells}) > 1]
    return {
        cell.name: ", ".join(
            f"{name} = {shown(getattr(cell.config, name))}"
            for name in varying
            if getattr(cell.config, name) != FIELDS[name].default
        )
        for cell in cells
    }


def shown(value: object) -> str:
    return " + ".join(value) if isinstance(value, tuple) else str(value)
