"""Experiment: what a run takes with a thousand to a million clients.

    python bench/scale.py [--clients 1000 10000 100000 1000000] [--each 5] [--width 20]
                          [--cohort 100] [--index-width 512] [--out build/scale]

Every number of clients has a process of its own: `each` training samples of `width` float32
features and one test sample a client, a linear model, uniform cohorts. Writes scale.json, scale.md
(the table) and scale.png. Times are CPU times, medians of some rounds, so that other work on the
machine shows little; the evaluation works on all cores and has its wall time beside, a round has
only that.

    start-up         from_arrays and Simulator
    memory           the most that was resident until the first rounds and evaluations were done,
                     the user's arrays included, less what Python and torch take before
    sampler          a uniform cohort
    steered sampler  a cohort by the scores of an index
    index read       the one pass over that index, two parts of `index-width` bfloat16 numbers a
                     client, that gives the scores; the fraction is of the bandwidth of a sum over
                     one of the parts in the same process
    round            sampling, training and aggregating, without evaluation; wall time
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from c2v_sim import Federation, RunConfig, Simulator
from c2v_sim.index.client_index import ClientIndex, federation_facts
from c2v_sim.system.machine import cpu_name
from c2v_sim.training.sampling import POLICIES

T = TypeVar("T")
ROUNDS = 15
OPTIONS = ("each", "width", "cohort", "index_width")
COLUMNS = {  # of the table: title, key, format
    "clients": ("clients", "{:,}"),
    "start-up": ("startup", "{:.2f} s"),
    "memory": ("memory_mb", "{:,.0f} MB"),
    "× data": ("times_data", "{:.2f}"),
    "and bytes a client": ("bytes_a_client", "{:.0f}"),
    "sampler": ("sampler_ms", "{:.2f} ms"),
    "steered sampler": ("steered_ms", "{:.2f} ms"),
    "index read": ("read_ms", "{:.1f} ms"),
    "of bandwidth": ("of_bandwidth", "{:.0%}"),
    "evaluation": ("evaluation", "{:.3f} s"),
    "its wall time": ("evaluation_wall", "{:.3f} s"),
    "round, wall time": ("round_ms", "{:.1f} ms"),
}


def cpu(work: Callable[[], T]) -> tuple[float, T]:
    """CPU seconds of all threads, and what came of them."""
    begin = time.process_time()
    result = work()
    return time.process_time() - begin, result


def resident(what: str) -> int:
    """Bytes: VmRSS now, or VmHWM, the most since `forget_peak`."""
    found = re.search(rf"{what}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return 1024 * int(found[1]) if found else 0


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def made_up_arrays(clients: int, each: int, width: int) -> dict[str, np.ndarray]:
    """Arrays as a user has them; in place, so that no others were ever there."""
    rng, samples = np.random.default_rng(0), clients * each
    arrays = {"x": np.empty((samples, width), np.float32)}
    arrays["x_test"] = np.empty((clients, width), np.float32)
    for name in ("x", "x_test"):
        rng.random(out=arrays[name], dtype=np.float32)
    arrays["y"], arrays["y_test"] = (np.arange(n) % 2 for n in (samples, clients))
    for y, x in (("y", "x"), ("y_test", "x_test")):
        arrays[x][:, 0] += arrays[y]
    arrays["client_ids"] = np.arange(samples) % clients
    arrays["client_ids_test"] = np.arange(clients)
    return arrays


def made_up_index(federation: Federation, width: int) -> ClientIndex:
    """Two parts of random vectors, a few thousand over and over: only their bytes count."""
    clients = federation.partition.clients
    some = torch.randn(min(clients, 4096), width, generator=torch.Generator().manual_seed(0))
    parts = [torch.empty(clients, width, dtype=torch.bfloat16) for _ in range(2)]
    for part in parts:
        for rows in part.split(len(some)):
            rows.copy_(some[: len(rows)])
    sizes = torch.from_numpy(federation.partition.sizes)
    about = {"federation": federation_facts(federation)}
    return ClientIndex(*parts, sizes, federation.label_counts, None, about)


def bandwidth(values: torch.Tensor) -> float:
    """Bytes that a sum reads in a CPU second."""
    values = values.view(torch.int32).flatten().view(torch.float32)
    return values.nbytes / min(cpu(values.sum)[0] for _ in range(5))


def steered_times(federation: Federation, config: RunConfig, width: int) -> dict[str, float]:
    index = made_up_index(federation, width)
    simulator = Simulator(federation, config, index=index)
    steering = simulator.steering
    assert steering is not None
    draws, reads = [], []
    for t in range(1, ROUNDS + 1):
        seconds, cohort = cpu(partial(steering.cohort, t))
        draws.append(seconds)
        seconds, similarity = cpu(partial(steering.similarity_to, cohort))
        reads.append(seconds)
        steering.finish(t, cohort, *similarity)
    simulator.close()
    read = statistics.median(reads)
    limit = bandwidth(index.feature)
    total = index.feature.nbytes + index.label.nbytes
    return {
        "steered_ms": 1e3 * statistics.median(draws),
        "read_ms": 1e3 * read,
        "of_bandwidth": total / read / limit,
        "read_gb_s": total / read / 1e9,
    }


def measured(clients: int, given: argparse.Namespace) -> dict[str, float]:
    """All numbers of one row; in a process that has done nothing else."""
    torch.set_num_threads(1)  # CPU times: lanes bring their own threads
    config = RunConfig(
        model="linear", participation=given.cohort / clients, local_epochs=1, batch_size=32,
        lr=0.1, rounds=ROUNDS, eval_every=ROUNDS,
    )  # fmt: skip
    warm = made_up_arrays(100, 2, given.width)  # what torch sets up once is none of a client's
    Simulator(Federation.from_arrays(**warm), RunConfig(model="linear", rounds=1)).run()
    before = resident("VmRSS")
    arrays = made_up_arrays(clients, given.each, given.width)
    data = sum(array.nbytes for array in arrays.values())
    forget_peak()
    begin = time.process_time()
    federation = Federation.from_arrays(**arrays)
    simulator = Simulator(federation, config)
    startup = time.process_time() - begin
    records = list(simulator.rounds())
    walls, evaluations = [], []
    for _ in range(5):
        wall = time.perf_counter()
        evaluations.append(cpu(simulator.evaluate)[0])
        walls.append(time.perf_counter() - wall)
    most = resident("VmHWM") - before
    sizes = federation.partition.sizes
    draw = partial(POLICIES["uniform"], 0)
    draws = [cpu(partial(draw, t, sizes, given.cohort))[0] for t in range(ROUNDS)]
    rounds = [sum(v for k, v in r.seconds.items() if k != "evaluate") for r in records[1:]]
    simulator.close()
    steered = RunConfig(**{**vars(config), "improve": ("sampling",), "steering_dtype": "bfloat16"})
    return {
        "clients": clients,
        "startup": startup,
        "memory_mb": most / 1e6,
        "times_data": most / data,
        "bytes_a_client": (most - data) / clients,
        "sampler_ms": 1e3 * statistics.median(draws),
        "evaluation": statistics.median(evaluations),
        "evaluation_wall": min(walls),
        "round_ms": 1e3 * statistics.median(rounds),
        **steered_times(federation, steered, given.index_width),
    }


def table(rows: list[dict[str, float]]) -> str:
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|"]
    for row in rows:
        cells = [form.format(row[key]) for key, form in COLUMNS.values()]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plot(rows: list[dict[str, float]], path: Path) -> None:
    from matplotlib.figure import Figure

    lines = {
        "start-up": ("startup", 1e3),
        "evaluation": ("evaluation", 1e3),
        "index read": ("read_ms", 1),
        "round": ("round_ms", 1),
        "steered sampler": ("steered_ms", 1),
        "sampler": ("sampler_ms", 1),
    }
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    clients = [row["clients"] for row in rows]
    for name, (key, scale) in lines.items():
        axes.loglog(clients, [scale * row[key] for row in rows], marker="o", label=name)
    axes.set(xlabel="clients", ylabel="milliseconds", title="What a run takes by its clients")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--clients", type=int, nargs="+", default=[10**n for n in range(3, 7)])
    parser.add_argument("--each", type=int, default=5)
    parser.add_argument("--width", type=int, default=20)
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--index-width", type=int, default=512)
    parser.add_argument("--out", type=Path, default=Path("build/scale"))
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)  # a row, as JSON
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measured(given.clients[0], given)))
        return
    rows = []
    for clients in given.clients:
        options = [f"--{name.replace('_', '-')}={getattr(given, name)}" for name in OPTIONS]
        command = [sys.executable, "-P", __file__, "--one", *options, "--clients", str(clients)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        rows.append(json.loads(done.stdout))
        print(table(rows[-1:]).splitlines()[-1], flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    about = f"{cpu_name()}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}"
    (given.out / "scale.json").write_text(json.dumps({"machine": about, "rows": rows}, indent=1))
    (given.out / "scale.md").write_text(f"{about}\n\n{table(rows)}\n")
    plot(rows, given.out / "scale.png")
    print(f"\n{about}\n\n{table(rows)}\n\n{given.out / 'scale.png'}")


if __name__ == "__main__":
    main()
