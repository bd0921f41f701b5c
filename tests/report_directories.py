"""Run directories of the real format with made-up numbers: many, long, and quickly written."""

import json
from pathlib import Path

import numpy as np
import torch

from c2v_sim import run_directory
from c2v_sim.client_index import ClientIndex
from c2v_sim.config import RunConfig, to_toml
from c2v_sim.records import RoundRecord

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
ALGORITHMS = ("fedavg", "feddyn", "moon", "fedprox", "fedlc")


def write_many(folder: Path, template: dict, *, clients=100, rounds=100, seeds=3) -> list[Path]:
    """5 algorithms × 4 improvements × seeds: 60 runs with 3 seeds; `template` is a manifest."""
    out = []
    for algorithm in ALGORITHMS:
        for improve in ((), ("sampling",), ("aggregation",), ("sampling", "aggregation", "local")):
            for seed in range(seeds):
                config = RunConfig(
                    dataset="cifar10",
                    clients=clients,
                    rounds=rounds,
                    algorithm=algorithm,
                    improve=improve,
                    seed=seed,
                )
                name = f"{algorithm}-{len(improve)}{'-'.join(improve)}-{seed}"
                out.append(write_run(folder / name, template, config))
    return out


def write_run(
    path: Path, template: dict, config: RunConfig, name="cifar10-standin(shapes)"
) -> Path:
    """One finished run; its numbers depend on the configuration alone."""
    text = f"{config.algorithm} {config.improve}"
    rng = np.random.default_rng([config.seed, *text.encode()])
    shared = np.random.default_rng(config.seed)  # the partition and index of all algorithms
    shares = shared.dirichlet(np.full(10, 0.1), config.clients)
    counts = np.stack([shared.multinomial(500, p) for p in shares])
    path.mkdir(parents=True)
    (path / "config.toml").write_text(to_toml(config))
    data = template["data"] | {"name": name, "classes": CLASSES, "domains": []}
    data["stand_in_for"] = "cifar10" if "standin" in name else None
    facts = template | {"data": data, "improve": list(config.improve), "seed": config.seed}
    facts |= {"encoder": "builtin" if config.improve else None, "index": None}
    (path / "manifest.json").write_text(json.dumps(facts | {"command": f"run {path.name}"}))
    tests = np.full(config.clients, 100)
    arrays = {"label_counts": counts, "test_sizes": tests, "domains": np.array([], np.int64)}
    np.savez_compressed(path / "clients.npz", **arrays)
    if config.improve:
        write_index(path, counts, shared)
    records = [make_record(name, t, config, rng) for t in range(1, config.rounds + 1)]
    lines = b"".join(map(run_directory.to_line, records))
    (path / "rounds.jsonl").write_bytes(lines)
    accuracy = rng.uniform(0.2, 0.9, config.clients).round(6).tolist()
    (path / "result.json").write_text(json.dumps({"final_client_accuracy": accuracy}))
    return path


def write_index(path: Path, counts: np.ndarray, rng: np.random.Generator) -> None:
    made = torch.from_numpy
    label = made((counts @ rng.normal(size=(10, 64))).astype(np.float32))
    feature = made(rng.normal(size=(len(counts), 64)).astype(np.float32)) + 0.02 * label
    about = {"encoder": "builtin", "quality": {"label_spearman": 0.91}}
    ClientIndex(feature, label, made(counts.sum(1)), made(counts), None, about).save(
        path / "index.safetensors"
    )


def make_record(name: str, t: int, config: RunConfig, rng: np.random.Generator) -> RoundRecord:
    size = max(1, round(config.participation * config.clients))
    weights = rng.dirichlet(np.full(size, 40.0))
    level = 0.6 + 0.03 * len(config.improve) - 0.5 * np.exp(-t / 25) + rng.normal(0, 0.01)
    seconds = {"sample": 0.002, "train": 3.1 + rng.normal(0, 0.2), "aggregate": 0.02}
    return RoundRecord(
        dataset=name,
        round=t,
        cohort=np.sort(rng.choice(config.clients, size, replace=False)).tolist(),
        weights=weights.round(9).tolist(),
        train_loss=float(rng.uniform(0.5, 2)),
        accuracy=level,
        accuracy_weighted=level + 0.01,
        accuracy_worst10=level / 2,
        accuracy_global=level + 0.02,
        accuracy_domains=None,
        seconds=seconds | {"evaluate": 0.4},
    )
