"""How long a sweep will take: a few steps of every kind of run and index, measured and multiplied.

Each kind of run (data, model, algorithm, case study iii, batch size) and of index is measured once
(sweep/probe.py, index/estimate.py).

    cell   = rounds × (k N/M epochs × seconds per sample + aggregation) + evaluations × test samples
    index  = embedding + training + averaging
    sweep  = sum of the indices + the end of the last cell, started as places become free
"""

import heapq
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from c2v_sim.config import RunConfig, index_settings
from c2v_sim.data.federation import Federation
from c2v_sim.index.estimate import Paces, index_cost
from c2v_sim.run.build import build_federation
from c2v_sim.run.files import count_rounds
from c2v_sim.sweep.file import Cell, cell_folder
from c2v_sim.sweep.jobs import python
from c2v_sim.sweep.probe import Pace, probe
from c2v_sim.sweep.progress import kind
from c2v_sim.system.settings import Affects


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
    steps: Paces = {}
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
    cohort = config.cohort_of(partition.clients)
    trained = cohort * partition.sizes.mean() * config.local_epochs * pace.sample
    rounds = config.rounds - done
    tests = sum(map(config.evaluates, range(done + 1, config.rounds + 1)))
    tested = tests * len(federation.dataset.y_test) * pace.test_sample
    return rounds * (trained + pace.aggregation) + tested


def index_seconds(federation: Federation, config: RunConfig, paces: Paces) -> float:
    """Seconds until the index of `config` is there, 0 if it is cached."""
    cost = index_cost(federation, index_settings(config), config.data_dir, paces)
    return 0.0 if cost is None else cost.total
