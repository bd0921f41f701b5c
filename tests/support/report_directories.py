"""Run directories for the report: real ones, some of which failed, and ones of the real format
with made-up numbers: many, long, and quickly written."""

import base64
import json
import re
import shutil
from pathlib import Path

import numpy as np
import torch
from plain_run import PLAIN

from c2v_sim.config import RunConfig, to_toml
from c2v_sim.index.client_index import ClientIndex
from c2v_sim.run import __main__ as run
from c2v_sim.run import files as run_directory
from c2v_sim.simulator.records import RoundRecord

CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
ALGORITHMS = ("fedavg", "feddyn", "moon", "fedprox", "fedlc")
TINY = ["--train-size", "600", "--test-size", "200", "--local-epochs", "1", "--batch-size", "16"]
DOMAINS = ["--partition", "by-domain", "--clients-per-domain", "2", "--model", "linear"]
DOMAINS += ["--participation", "0.4", "--rounds", "4"]
MLP = ["--clients", "12", "--alpha", "0.5", "--model", "mlp"]
MLP += ["--participation", "0.25", "--rounds", "3"]
STEERED = ["--improve", "sampling", "aggregation", "local", "--index-epochs", "1"]
STEERED += ["--index-dropout", "0", "--index-max-samples", "10"]
RUNS = {
    "steered-0": [*DOMAINS, *STEERED, "--seed", "0"],
    "steered-1": [*DOMAINS, *STEERED, "--seed", "1"],
    "plain-0": [*DOMAINS, *PLAIN, "--seed", "0"],
    "plain-1": [*DOMAINS, *PLAIN, "--seed", "1"],
    "mlp": [*MLP, *PLAIN],
}
NOT_FINITE = "round 3, client 5: the model is not finite"
NO_INDEX = "the index could not be built: no space left on device"


def make_real_runs(folder: Path) -> Path:
    """Real runs, and one of them as it was left after two rounds."""
    for name, flags in RUNS.items():
        assert run.main([*TINY, *flags, "--out", str(folder / name)]) == 0
    stopped = folder / "stopped"
    shutil.copytree(folder / "plain-0", stopped)
    (stopped / "config.toml").write_text(settings_of(folder / "plain-0", seed=2))
    (stopped / "result.json").unlink()
    (stopped / "clients.npz").unlink()  # as older versions left it
    lines = (stopped / "rounds.jsonl").read_text().splitlines(keepends=True)
    (stopped / "rounds.jsonl").write_text("".join(lines[:2]) + lines[2][:50])
    return folder


def settings_of(path: Path, seed: int, algorithm="fedavg") -> str:
    """The settings of a run, with another seed and algorithm."""
    text = re.sub("^seed = .*$", f"seed = {seed}", (path / "config.toml").read_text(), flags=re.M)
    return text.replace('algorithm = "fedavg"', f'algorithm = "{algorithm}"')


def add_failures(runs: Path, cells: Path) -> Path:
    """A copy of the real runs with four failed cells, as a sweep leaves them; one has begun."""
    shutil.copytree(runs, cells)
    shutil.copytree(cells / "stopped", cells / "plain-3")
    failures = {
        "plain-3": (settings_of(runs / "plain-0", 3), NOT_FINITE),
        "plain-4": (settings_of(runs / "plain-0", 4), ""),
        "steered-2": (settings_of(runs / "steered-0", 2), NO_INDEX),
        "feddyn-0": (settings_of(runs / "plain-0", 0, "feddyn"), "killed"),
    }
    for name, (settings, said) in failures.items():
        (cells / f"{name}.toml").write_text(settings)
        log = ["round 1/4", f"c2v_sim: error: {said}. Go on with: python"] if said else []
        facts = {"command": "python -m c2v_sim.run", "exit_code": 9, "log": log}
        (cells / f"{name}.failed").write_text(json.dumps(facts))
    (cells / "plain-3" / "config.toml").write_text(failures["plain-3"][0])
    return cells


def embedded(page: Path) -> dict:
    """The data in a report."""
    (text,) = re.findall(
        r'<script id="data" type="application/json">(.*?)</script>', page.read_text(), re.DOTALL
    )
    return json.loads(text)


def unpack(packed: dict) -> np.ndarray:
    return np.frombuffer(base64.b64decode(packed["data"]), f"<u{packed['bits'] // 8}")


def write_many(folder: Path, template: dict, *, clients=100, rounds=100, seeds=3) -> list[Path]:
    """5 algorithms × 4 improvements × seeds: 60 runs with 3 seeds; `template` is a manifest.

    Clients have domains, so that every figure has something to show.
    """
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
                out.append(write_run(folder / name, template, config, domains=6))
    return out


def write_run(
    path: Path, template: dict, config: RunConfig, name="cifar10-standin(shapes)", domains=0
) -> Path:
    """One finished run; its numbers depend on the configuration alone."""
    text = f"{config.algorithm} {config.improve}"
    rng = np.random.default_rng([config.seed, *text.encode()])
    shared = np.random.default_rng(config.seed)  # the partition and index of all algorithms
    shares = shared.dirichlet(np.full(10, 0.1), config.clients)
    counts = np.stack([shared.multinomial(500, p) for p in shares])
    path.mkdir(parents=True)
    (path / "config.toml").write_text(to_toml(config))
    data = template["data"] | {"name": name, "classes": CLASSES}
    data["domains"] = [f"domain {d}" for d in range(domains)]
    data["stand_in_for"] = "cifar10" if "standin" in name else None
    facts = template | {"data": data, "improve": list(config.improve), "seed": config.seed}
    facts |= {"partition": template["partition"] | {"clients": config.clients}}
    facts |= {"encoder": "builtin" if config.improve else None, "index": None}
    (path / "manifest.json").write_text(json.dumps(facts | {"command": f"run {path.name}"}))
    tests = np.full(config.clients, 100)
    of_domain = np.arange(config.clients if domains else 0) % max(domains, 1)
    arrays = {"label_counts": counts, "test_sizes": tests, "domains": of_domain}
    np.savez_compressed(path / "clients.npz", **arrays)
    if config.improve:
        write_index(path, counts, shared)
    records = [make_record(name, t, config, rng, domains) for t in range(1, config.rounds + 1)]
    lines = b"".join(map(run_directory.to_line, records))
    (path / "rounds.jsonl").write_bytes(lines)
    accuracy = rng.uniform(0.2, 0.9, config.clients).round(6).tolist()
    (path / "result.json").write_text(json.dumps({"final_client_accuracy": accuracy}))
    return path


def write_index(path: Path, counts: np.ndarray, rng: np.random.Generator) -> None:
    made = torch.from_numpy
    label = made((counts @ rng.normal(size=(10, 64))).astype(np.float32))
    feature = made(rng.normal(size=(len(counts), 64)).astype(np.float32)) + 0.02 * label
    about = {"encoder": "builtin", "quality": {"label_spearman": 0.91}, "federation": {}}
    ClientIndex(feature, label, made(counts.sum(1)), made(counts), None, about).save(
        path / "index.safetensors"
    )


def make_record(
    name: str, t: int, config: RunConfig, rng: np.random.Generator, domains: int
) -> RoundRecord:
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
        accuracy_domains=(level + rng.normal(0, 0.05, domains)).tolist() if domains else None,
        seconds=seconds | {"evaluate": 0.4},
    )
