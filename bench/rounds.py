"""Whole rounds: c2v_sim with 1 and 2 lanes against PLAIN and TIGHT FedAvg.

    python bench/rounds.py [--models cnn resnet8 …] [--rounds N] [--json FILE]
    python bench/rounds.py --only memory startup

Contestants alternate round by round: all train the same cohort of the same clients from the same
start, then all the next one, in an order that rotates; ratios are medians over rounds of paired
times. Each contestant lives in a process of its own that sleeps while the others train: c2v_sim
calls keep_freed_memory() as its command does, a user of PLAIN or TIGHT does not have it (`--kept`
adds both baselines with it, in the tables `plain*` and `tight*`). Baselines use torch's default
number of threads, c2v_sim one thread per lane. Nobody evaluates. Only a quiet machine tells wall
times: threads of a baseline wait for one another, so other load slows them more than lanes. CPU
seconds bear it better (`OMP_NUM_THREADS=1` then compares one core with one core).
"""

import argparse
import itertools
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import plain_fedavg
import psutil
import tight_fedavg
import torch
from round_cases import CASES, Case, build, config, federation, flops_per_sample, normalised

from c2v_sim import Simulator
from c2v_sim.system.machine import intra_op_threads, keep_freed_memory
from c2v_sim.training.sampling import uniform

BASELINES = {"plain": plain_fedavg.rounds, "tight": tight_fedavg.rounds}
SIMULATORS = {"1 lane": 1, "2 lanes": 2}
Worker = tuple[multiprocessing.process.BaseProcess, Connection]


# A contestant's process ---------------------------------------------------------------------


def cohorts(case: Case) -> Iterator[np.ndarray]:
    """The simulator's own draws, for the baselines."""
    sizes = np.ones(case.clients)  # uniform: they do not matter
    return (uniform(0, t, sizes, case.cohort) for t in itertools.count(1))


def contestant_rounds(name: str, case: Case) -> Iterator[object]:
    """Trains a round whenever it is asked for the next item."""
    data = federation(case)
    if name in SIMULATORS:
        simulator = Simulator(data, config(case, SIMULATORS[name]), model=build(case))
        return _same_cohorts(simulator, cohorts(case))
    settings = config(case, 1)
    sgd = {k: getattr(settings, k) for k in ("lr", "momentum", "weight_decay")}
    sizes = {"epochs": case.epochs, "batch_size": case.batch_size}
    arrays = (normalised(data), data.dataset.y_train, data.partition.train, cohorts(case))
    return BASELINES[name.rstrip("*")](build(case), *arrays, **sizes, sgd=sgd)


def _same_cohorts(simulator: Simulator, wanted: Iterator[np.ndarray]) -> Iterator[object]:
    for record, cohort in zip(simulator.rounds(), wanted, strict=False):
        if record.cohort != cohort.tolist():
            raise RuntimeError(f"round {record.round}: the baselines train another cohort")
        yield record


def live(name: str, case: Case, pipe: Connection) -> None:
    """Answer each request for a round with its seconds, CPU seconds and the memory in use."""
    if name in SIMULATORS or name.endswith("*"):
        keep_freed_memory()
    work = contestant_rounds(name, case)
    pipe.send("ready")
    while pipe.recv() == "round":
        begin, cpu = time.perf_counter(), time.process_time()
        next(work)
        taken = time.perf_counter() - begin, time.process_time() - cpu
        pipe.send((*taken, psutil.Process().memory_info().rss))
    pipe.send(peak_memory())


def peak_memory() -> int:
    """Bytes; not ru_maxrss, which a new process inherits from the one that started it."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


def start(names: list[str], case: Case) -> dict[str, Worker]:
    spawn = multiprocessing.get_context("spawn")
    workers: dict[str, Worker] = {}
    for name in names:
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=live, args=(name, case, theirs), daemon=True)
        process.start()
        theirs.close()
        workers[name] = (process, ours)
    for _, pipe in workers.values():
        pipe.recv()  # data and model are ready
    return workers


def one_round(worker: Worker) -> tuple[float, float, int]:
    worker[1].send("round")
    return worker[1].recv()


def finish(worker: Worker) -> int:
    """End the process; its peak memory in bytes."""
    worker[1].send("stop")
    peak = worker[1].recv()
    worker[0].join()
    return peak


# Measurements -------------------------------------------------------------------------------


def sgemm_peak(threads: int) -> float:
    """Best of ten products of two 2048 × 2048 matrices, flop/s."""
    x, y = torch.ones(2048, 2048), torch.ones(2048, 2048)
    best = float("inf")
    with intra_op_threads(threads):
        for _ in range(10):
            begin = time.perf_counter()
            torch.mm(x, y)
            best = min(best, time.perf_counter() - begin)
    return 2 * 2048**3 / best


def compare(key: str, rounds: int, kept: bool) -> dict[str, dict[str, float]]:
    """Contestant → samples/s, seconds per round, GFLOP/s, share of sgemm peak, peak memory."""
    case = CASES[key]
    names = [*BASELINES, *SIMULATORS] + (["plain*", "tight*"] if kept else [])
    sizes = federation(case).partition.sizes
    workers = start(names, case)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    cpu: dict[str, list[float]] = {name: [] for name in names}
    samples = []
    for t, cohort in zip(range(rounds + 1), cohorts(case), strict=False):
        for name in names[t % len(names) :] + names[: t % len(names)]:
            wall, busy, _ = one_round(workers[name])
            seconds[name].append(wall)
            cpu[name].append(busy)
        samples.append(int(sizes[cohort].sum()) * case.epochs)
    peaks = {name: finish(worker) for name, worker in workers.items()}
    flops = flops_per_sample(case)
    limits = {cores: sgemm_peak(cores) for cores in (1, 2)}
    table = {}
    for name in names:
        taken = np.array(seconds[name][1:])  # the first round warms up
        rate = float(np.median(np.array(samples[1:]) / taken))
        table[name] = {
            "samples/s": rate,
            "s per round": float(np.median(taken)),
            "CPU s": float(np.median(cpu[name][1:])),
            "GFLOP/s": flops * rate / 1e9,
            "of sgemm": flops * rate / limits[SIMULATORS.get(name, 2)],
            "peak MB": peaks[name] / 1e6,
        } | {
            f"× {base}": float(np.median(np.array(seconds[base][1:]) / taken))
            for base in names
            if base not in SIMULATORS
        }
    return table


def memory(rounds: int) -> dict[str, float]:
    """Resident memory of one simulator after 20 rounds and after the last, in MB, and its peak."""
    worker = start(["2 lanes"], CASES["overhead"])["2 lanes"]
    resident = [one_round(worker)[2] / 1e6 for _ in range(rounds)]
    return {
        "round 20": resident[19],
        f"round {rounds}": resident[-1],
        "growth": resident[-1] - resident[19],
        "peak": finish(worker) / 1e6,
    }


FIRST_STEP = """
import time
begun = time.time()
import torch
torch_ready = time.time()
from round_cases import CASES, build, config, federation
from c2v_sim import Simulator
from c2v_sim.system.machine import keep_freed_memory
imported = time.time()
keep_freed_memory()
case = CASES["cnn"]
data, model = federation(case), build(case)
made = time.time()
features, stepped = type(model).features, []
def first(self, x):
    if torch.is_grad_enabled():  # not the look at the model's width
        stepped.append(time.time())
    return features(self, x)
type(model).features = first
simulator = Simulator(data, config(case, 2), model=model)
next(simulator.rounds())
print(begun, torch_ready, imported, made, stepped[0])
"""


def startup() -> dict[str, float]:
    """Median seconds of three new processes from their start to the first training step (cnn)."""
    stages = ("python", "import torch", "import c2v_sim", "synthetic data", "first step")
    runs = []
    for _ in range(3):
        begin = time.time()
        out = subprocess.run(
            [sys.executable, "-c", FIRST_STEP],
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
            capture_output=True,
            text=True,
            check=True,
        )
        runs.append(np.diff([begin, *map(float, out.stdout.split())]))
    each = [float(statistics.median(stage)) for stage in zip(*runs, strict=True)]
    return dict(zip(stages, each, strict=True)) | {"in all": float(np.sum(each))}


# The report ---------------------------------------------------------------------------------


def digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def markdown(key: str, table: dict[str, dict[str, float]]) -> str:
    case = CASES[key]
    kind = "Dirichlet 0.1 per class" if case.uneven else "even"
    about = (
        f"{key}: {case.model}, {case.samples:,} samples, {case.clients} clients ({kind}), cohort "
        f"{case.cohort}, batch {case.batch_size}, {case.epochs} local epoch(s)"
    )
    columns = list(next(iter(table.values())))
    lines = ["", about, "", "| | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for name, row in table.items():
        lines.append(f"| {name} | " + " | ".join(digits(row[c]) for c in columns) + " |")
    return "\n".join(lines)


def one_line(title: str, unit: str, values: dict[str, float]) -> str:
    return f"\n{title}: " + ", ".join(f"{k} {digits(v)} {unit}" for k, v in values.items())


def main() -> None:
    summary, details = (__doc__ or "").split("\n\n", 1)
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=summary, epilog=details, formatter_class=form)
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=7, help="timed rounds of each contestant")
    parser.add_argument("--kept", action="store_true", help="also baselines that keep freed memory")
    parser.add_argument("--only", nargs="+", choices=("models", "memory", "startup"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there too")
    arguments = parser.parse_args()
    parts = arguments.only or ["models", "memory", "startup"]
    facts = {"torch": torch.__version__, "cores": os.cpu_count(), "machine": platform.machine()}
    facts |= {"threads": torch.get_num_threads(), "load before": round(os.getloadavg()[0], 1)}
    result: dict = {"environment": facts, "models": {}}
    print(", ".join(f"{k} {v}" for k, v in facts.items()))
    for key in arguments.models if "models" in parts else []:
        result["models"][key] = compare(key, arguments.rounds, arguments.kept)
        print(markdown(key, result["models"][key]), flush=True)
    if "memory" in parts:
        result["memory"] = memory(200)
        print(one_line("resident memory over 200 rounds", "MB", result["memory"]), flush=True)
    if "startup" in parts:
        result["startup"] = startup()
        print(one_line("start-up to the first step", "s", result["startup"]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
