"""How long a sweep will take: a few steps of every kind of run and index, measured and multiplied.

Each kind of run (data, model, algorithm, case study iii, batch size) and of index is measured once
(sweep/probe.py).

    cell   = rounds × (k N/M epochs × seconds per sample + aggregation) + evaluations × test samples
    index  = samples to embed / rate + pairs that DSA-IGN sees × seconds per pair
    sweep  = sum of the indices + the end of the last cell, started as places become free
"""

import heapq
import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from c2v_sim.config import RunConfig, index_settings
from c2v_sim.data.federation import Federation
from c2v_sim.index.build import cache_folder, cache_path, index_embeddings
from c2v_sim.index.config import IndexConfig
from c2v_sim.index.encoders.embed import embed_dataset, is_cached
from c2v_sim.run.build import build_federation
from c2v_sim.run.files import count_rounds
from c2v_sim.sweep.file import Cell, cell_folder
from c2v_sim.sweep.jobs import SLEEP_WHILE_WAITING, python
from c2v_sim.sweep.probe import Pace, cut, pair_seconds, probe
from c2v_sim.sweep.progress import kind
from c2v_sim.system.settings import Affects, values_affecting
from c2v_sim.training.sampling import cohort_size


def start_seconds() -> float:
    """Seconds of a process before its first step."""
    begin = time.perf_counter()
    subprocess.run([*python(), "-c", "import c2v_sim.run"], check=True)
    return time.perf_counter() - begin


@dataclass(frozen=True)
class Estimate:
    """Seconds of every cell and of every index that is still to be built."""

    cells: dict[str, float]
    indices: dict[str, float]

    def total(self, at_once: int, places: list[int]) -> float:
        """`places`: those of each cell (sweep/runner.py)."""
        free = [0.0] * at_once  # when each becomes free
        for seconds, count in zip(self.cells.values(), places, strict=True):
            heapq.heapreplace(free, free[0] + seconds / count)
        return sum(self.indices.values()) + max(free)


def estimate(out: Path, cells: list[Cell], users: dict[str, list[Cell]], at_once: int) -> Estimate:
    """`users`: the cells of each index that is to be built (sweep/runner.py)."""
    paces: dict[tuple, Pace] = {}
    steps: dict[tuple, float] = {}
    times, indices, start = {}, {}, start_seconds()
    first_user = {using[0].name: key for key, using in users.items()}
    for cell in cells:
        federation, config = build_federation(cell.config)
        pace = kind(config, Affects.PACE)
        if pace not in paces:
            paces[pace] = probe(federation, config, at_once)
        done = count_rounds(cell_folder(out, cell))
        times[cell.name] = start + cell_seconds(federation, config, paces[pace], done)
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


def index_seconds(federation: Federation, config: RunConfig, steps: dict[tuple, float]) -> float:
    """Seconds until the index of `config` is there, 0 if it is cached; `steps`: those per pair."""
    settings = index_settings(config)
    limited = federation.limited(settings.max_samples, settings.seed)
    chosen = limited.dataset
    encoder = settings.make_encoder()
    if is_cached(chosen, encoder, cache_folder(config.data_dir) / "embeddings"):
        embeddings = index_embeddings(federation, settings, config.data_dir)
        if cache_path(federation, settings, embeddings, config.data_dir).exists():
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
    pace = values_affecting(settings, Affects.PACE)
    if pace not in steps:
        steps[pace] = as_an_index_is_built(pair_seconds, settings)
    return seconds + steps[pace] * (pairs_trained(limited, settings) + len(chosen.y_train) / 3)


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
