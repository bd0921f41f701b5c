"""Stage 10: the run directory. Everything that a result needs to be believed and repeated.

config.toml        every setting
manifest.json      data source and hash, partition, evaluation, versions, commit, machine
partition.npz      which sample belongs to which client
clients.npz        label_counts [M, K] of the training samples, test_sizes [M], domains [M] or [0]
index.safetensors  the client index, where one steers the run
rounds.jsonl       one record a round, written as soon as the round is done
rounds.csv         the same as a table (run/rounds_csv.py), written with every checkpoint
tensorboard/       the same as event files, with --tensorboard (run/tensorboard.py)
checkpoints/       where `--resume` goes on: the two newest generations (run/checkpoint.py)
model.safetensors  the final global model; accuracy.png: the curve; result.json: the summary
"""

import dataclasses
import json
import os
import platform
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from c2v_sim.algorithms import Algorithm
from c2v_sim.config import RunConfig, to_toml
from c2v_sim.data.federation import Federation
from c2v_sim.index.client_index import ClientIndex
from c2v_sim.models import NORMED_MODELS
from c2v_sim.ops._dispatch import OPERATORS, native_missing
from c2v_sim.simulator.evaluation import PROTOCOL
from c2v_sim.simulator.records import Result, RoundRecord
from c2v_sim.simulator.simulator import Simulator
from c2v_sim.system.files import flush, new_directory, write_atomically

CONFIG, MANIFEST, PARTITION = "config.toml", "manifest.json", "partition.npz"
CLIENTS = "clients.npz"
ROUNDS, CHECKPOINTS, RESULT = "rounds.jsonl", "checkpoints", "result.json"
MODEL, PICTURE, INDEX = "model.safetensors", "accuracy.png", "index.safetensors"
TABLE = "rounds.csv"


def create_run_directory(path: Path, simulator: Simulator, label: str, command: str) -> None:
    """Make `path`, which must not exist, with what is known before training: all or nothing."""
    name = simulator.federation.dataset.name
    facts = to_json(manifest(simulator, label, command))
    with new_directory(path) as folder:
        (folder / CHECKPOINTS).mkdir()
        (folder / CONFIG).write_text(f"# trained on {name}\n" + to_toml(simulator.config))
        (folder / MANIFEST).write_text(facts)
        simulator.federation.partition.save(folder / PARTITION)
        np.savez_compressed(folder / CLIENTS, **client_facts(simulator.federation))


def client_facts(federation: Federation) -> dict[str, Any]:
    """What each client holds, for pictures: a partition's sample ids alone do not say it."""
    partition = federation.partition
    return {
        "label_counts": federation.label_counts.numpy(),  # [M, K]
        "test_sizes": np.array([len(ids) for ids in partition.test], dtype=np.int64),  # [M]
        "domains": np.array(partition.domains or (), dtype=np.int64),  # [M], or [0] without
    }


def manifest(simulator: Simulator, label: str, command: str) -> dict[str, Any]:
    """What produced this run, as plain data."""
    config, federation = simulator.config, simulator.federation
    return {
        "preset": label,
        "command": command,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "data": data_facts(federation),
        "partition": {
            "convention": federation.partition.convention,
            "clients": federation.partition.clients,
            "sha256": federation.partition.sha256,
        },
        "model": {
            "name": config.model,
            "norm": norm_policy(config),
            "parameters": simulator.layout.trainable,
            "buffers": simulator.layout.size - simulator.layout.trainable,
            "pretrained": simulator.pretrained and dataclasses.asdict(simulator.pretrained),
        },
        "algorithm": {"name": simulator.algorithm.name} | vars_of(simulator.algorithm),
        "encoder": None,  # and the index: filled in by add_index
        "index": None,
        "improve": list(config.improve),
        "client_state": simulator.row_plan.sentence,
        "seed": config.seed,
        "evaluation": PROTOCOL,
        "lanes": simulator.lanes.count,
        "backend": backend_facts(simulator.device),
        "versions": versions(),
        "commit": commit(),
        "machine": machine(simulator.device),
    }


def vars_of(algorithm: Algorithm) -> dict[str, Any]:
    """The settings of an algorithm that is a dataclass."""
    return dataclasses.asdict(algorithm) if dataclasses.is_dataclass(algorithm) else {}


def add_index(path: Path, index: ClientIndex) -> None:
    """Keep the index that steers the run, and say in the manifest where it came from."""
    facts = json.loads((path / MANIFEST).read_text())
    about = {k: v for k, v in index.provenance.items() if k not in ("curve", "federation")}
    facts |= {"encoder": index.provenance["encoder"], "index": about}
    write_text(path / MANIFEST, to_json(facts))
    index.save(path / INDEX)


def data_facts(federation: Federation) -> dict[str, Any]:
    dataset = federation.dataset
    return {
        "name": dataset.name,
        "stand_in_for": dataset.standin_for,
        "source": dataset.source,
        "sha256": dataset.sha256,
        "train": len(dataset.y_train),
        "test": len(dataset.y_test),
        "classes": list(dataset.class_names),
        "domains": list(dataset.domain_names),
    }


def norm_policy(config: RunConfig) -> str:
    if config.model not in NORMED_MODELS:
        return "none"
    if config.norm == "batch":
        return "batch norm; running statistics averaged with the aggregation weights"
    return "group norm, 2 groups"


def backend_facts(device: torch.device) -> dict[str, Any]:
    rows = torch.zeros(1, 1, device=device)
    return {
        "device": str(device),
        "operators": OPERATORS["weighted_sum"].choose(None, rows, rows[0], rows[0]),
        "native_missing": native_missing,
        "intra_op_threads_per_lane": 1,
    }


def versions() -> dict[str, str]:
    names = ("c2v_sim", "torch", "numpy")
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in names}


def commit() -> str | None:
    """The commit of the source tree that is running, with -dirty; None outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def machine(device: torch.device) -> dict[str, Any]:
    facts = {
        "system": platform.platform(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": None,
    }
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
    return facts


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        named = (line for line in lines if line.startswith("model name"))
        return next(named).split(":", 1)[1].strip()
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def append_round(path: Path, record: RoundRecord) -> None:
    """Add one line to rounds.jsonl; a kill of this process cannot take it back."""
    with (path / ROUNDS).open("ab") as file:
        file.write(to_line(record))


def flush_rounds(path: Path) -> None:
    """Wait until the lines of rounds.jsonl are on disk: a power failure cannot take them."""
    flush(path / ROUNDS)


def rewrite_rounds(path: Path, lines: list[bytes]) -> None:
    """Replace rounds.jsonl: a resumed run drops rounds after its checkpoint."""
    write_atomically(path / ROUNDS, lambda p: p.write_bytes(b"".join(lines)))


def to_line(record: RoundRecord) -> bytes:
    return json.dumps(dataclasses.asdict(record)).encode() + b"\n"


def parse_rounds(lines: list[bytes]) -> list[RoundRecord]:
    """The records in lines of rounds.jsonl."""
    return [RoundRecord(**json.loads(line)) for line in lines]


def finish(path: Path, simulator: Simulator, result: Result) -> dict[str, OSError]:
    """Write what is known after training: model, summary, picture; what could not be, and why."""
    name = simulator.federation.dataset.name
    facts = {"dataset": name, "model": simulator.config.model, "round": simulator.round}
    about = {"about": json.dumps(facts)}  # one text: of several the file's order is random
    if simulator.client_accuracy is None:  # resumed after its last round
        simulator.evaluate()

    def write_model(file: Path) -> None:
        try:
            save_file(simulator.global_model(), str(file), metadata=about)
        except SafetensorError as error:  # a full disk, for example
            raise OSError(None, str(error), str(file)) from error

    text = to_json(summary(simulator, result))
    picture = accuracy_figure(result, f"{name}, {simulator.config.algorithm}")
    writers: dict[str, Callable[[Path], object]] = {
        MODEL: write_model,
        RESULT: lambda p: p.write_text(text),
        PICTURE: lambda p: picture.savefig(p, format="png"),
    }
    failed = {}
    for file, write in writers.items():
        try:
            write_atomically(path / file, write)
        except OSError as error:
            failed[file] = error
    return failed


def summary(simulator: Simulator, result: Result) -> dict[str, Any]:
    best, final = result.best, result.final
    accuracies = simulator.client_accuracy
    return {
        "dataset": simulator.federation.dataset.name,
        "algorithm": simulator.config.algorithm,
        "rounds": simulator.round,
        "best_accuracy": best.accuracy,
        "best_round": best.round,
        "final_accuracy": final.accuracy,
        "final_accuracy_weighted": final.accuracy_weighted,
        "final_accuracy_worst10": final.accuracy_worst10,
        "final_accuracy_global": final.accuracy_global,
        "seconds": round(sum(sum(r.seconds.values()) for r in result.records), 2),
        "final_client_accuracy": None
        if accuracies is None
        else [None if np.isnan(a) else round(float(a), 6) for a in accuracies],
    }


def accuracy_figure(result: Result, title: str) -> Any:
    """The accuracy curve, a matplotlib Figure."""
    from matplotlib.figure import Figure  # slow to import; no window system is touched

    figure = Figure(figsize=(7, 4), dpi=150, layout="constrained")
    axes = figure.subplots()
    rounds = [r.round for r in result.evaluated]
    curves = {
        "mean over clients": [r.accuracy for r in result.evaluated],
        "whole test set": [r.accuracy_global for r in result.evaluated],
        "worst 10 % of clients": [r.accuracy_worst10 for r in result.evaluated],
    }
    for name, values in curves.items():
        axes.plot(rounds, [100 * (v or 0.0) for v in values], marker=".", label=name)
    axes.set(title=title, xlabel="round", ylabel="test accuracy (%)", ylim=(0, 100))
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda p: p.write_text(text))


def to_json(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=2) + "\n"
