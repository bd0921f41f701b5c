"""Experiment: should a lane be a thread or a process?

    python bench/lanes_or_processes.py [--models cnn resnet8 mlp linear] [--rounds N] [--workers W]

Both kinds run the same function on the same shared rows: W workers of one intra-op thread take
clients from one queue, largest first, train each in its row [P] of a shared arena, and a round
ends when all rows are written. Threads share the interpreter lock; processes are spawned once,
and only the numbers of the clients travel. Times of a round alternate, ratios are medians over
rounds. Stacking (c2v_sim/training/stacked) is left out: it covers linear and small MLP models.
"""

import argparse
import copy
import itertools
import queue
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from round_cases import CASES, Case, build, federation
from torch import Tensor, nn

from c2v_sim import ops
from c2v_sim.data.resident import ResidentData
from c2v_sim.system.machine import keep_freed_memory
from c2v_sim.training.arena import layout_of

MODELS = {
    "cnn": replace(CASES["cnn"], samples=10_000, clients=50),
    "resnet8": replace(CASES["resnet8"], samples=5_000, clients=30),
    "mlp": replace(CASES["linear"], model="mlp"),
    "linear": CASES["linear"],
    "overhead": CASES["overhead"],
}


class Worker:
    """A worker's own module, whose parameters are views into the row that it trains."""

    def __init__(self, model: nn.Module) -> None:
        self.module = copy.deepcopy(model).train()
        layout = layout_of(model)
        self.slots = layout.parameters
        self.parameters = list(self.module.parameters())
        self.gradients = torch.zeros(layout.trainable)
        for parameter, slot in zip(self.parameters, self.slots, strict=True):
            parameter.grad = slot.view(self.gradients)

    def train(self, row: Tensor, data: ResidentData, ids: np.ndarray, batch_size: int) -> None:
        for parameter, slot in zip(self.parameters, self.slots, strict=True):
            parameter.data = slot.view(row)
        order = torch.from_numpy(np.random.default_rng(len(ids)).permutation(ids))
        for batch in order.split(batch_size):
            x, y = data.batch(batch)
            F.cross_entropy(self.module(x), y).backward()
            ops.sgd_step_(row, self.gradients, lr=1e-3, weight_decay=5e-5, zero_grads=True)


class Shared:
    """What both kinds of workers use; a process receives it as handles of shared memory."""

    def __init__(self, case: Case) -> None:
        data = federation(case)
        dataset, self.model = data.dataset, build(case)
        self.samples, self.batch_size = data.partition.train, case.batch_size
        scale = (dataset.mean, dataset.std, torch.device("cpu"))
        self.data = ResidentData(dataset.x_train, dataset.y_train, *scale)
        size = layout_of(self.model).trainable
        self.start = torch.zeros(size).share_memory_()
        self.rows = torch.zeros(case.cohort, size).share_memory_()  # [K, P]
        for slot, parameter in zip(
            layout_of(self.model).parameters, self.model.parameters(), strict=True
        ):
            slot.view(self.start).copy_(parameter.detach())
        for tensor in (self.data.x, self.data.y):
            tensor.share_memory_()


def work(shared: Shared, jobs: Any, done: Any) -> None:
    """Take (row, client) from `jobs` until None comes; report each row in `done`."""
    torch.set_num_threads(1)
    worker = Worker(shared.model)
    done.put("ready")
    while (job := jobs.get()) is not None:
        row, client = job
        shared.rows[row].copy_(shared.start)
        worker.train(shared.rows[row], shared.data, shared.samples[client], shared.batch_size)
        done.put(row)


def work_in_process(*arguments: Any) -> None:
    keep_freed_memory()
    work(*arguments)


def start_threads(shared: Shared, count: int) -> tuple[Any, Any]:
    jobs: Any = queue.SimpleQueue()
    done: Any = queue.SimpleQueue()
    for _ in range(count):
        threading.Thread(target=work, args=(shared, jobs, done), daemon=True).start()
    return jobs, done


def start_processes(shared: Shared, count: int) -> tuple[Any, Any]:
    spawn = torch.multiprocessing.get_context("spawn")
    jobs, done = spawn.SimpleQueue(), spawn.SimpleQueue()
    for _ in range(count):
        spawn.Process(target=work_in_process, args=(shared, jobs, done), daemon=True).start()
    return jobs, done


def measure(case: Case, workers: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each round of every kind, the first (warm-up) left out."""
    torch.set_num_threads(1)
    shared = Shared(case)
    kinds: dict[str, tuple[Callable, int]] = {
        "1 thread": (start_threads, 1),
        f"{workers} threads": (start_threads, workers),
        f"{workers} processes": (start_processes, workers),
    }
    pools = {name: (*start(shared, count), count) for name, (start, count) in kinds.items()}
    for _, done, count in pools.values():
        for _ in range(count):
            done.get()
    seconds: dict[str, list[float]] = {name: [] for name in pools}
    for t in range(rounds + 1):
        chosen = np.random.default_rng(t).permutation(case.clients)[: case.cohort].tolist()
        chosen.sort(key=lambda client: -len(shared.samples[client]))
        names = list(itertools.islice(itertools.cycle(pools), t % 3, t % 3 + 3))
        for name in names:
            jobs, done, _ = pools[name]
            begin = time.perf_counter()
            for job in enumerate(chosen):
                jobs.put(job)
            for _ in chosen:
                done.get()
            seconds[name].append(time.perf_counter() - begin)
    for jobs, _, count in pools.values():
        for _ in range(count):
            jobs.put(None)
    return {name: values[1:] for name, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    keep_freed_memory()
    print("| ms per round | 1 thread | threads | processes | × of threads | × of processes |")
    print("|---|---:|---:|---:|---:|---:|")
    for name in arguments.models:
        one, threads, processes = measure(
            MODELS[name], arguments.workers, arguments.rounds
        ).values()
        cells = [f"{1e3 * statistics.median(s):.1f}" for s in (one, threads, processes)]
        for slow, fast in ((one, threads), (threads, processes)):
            ratios = [a / b for a, b in zip(slow, fast, strict=True)]
            cells.append(f"{statistics.median(ratios):.2f}")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
