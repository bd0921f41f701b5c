"""Trains small federations on 1, 2, 3 and 4 ranks: `python rank_driver.py FOLDER`.

FOLDER/<size>.json has for each case the hash of the final state and the records, and of the cases
that have it the hash of an index that was built on the way.
"""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from federations import bits, image_federation, simulator_with
from forked_ranks import run_ranks
from torch import nn

from c2v_sim import RunConfig, Simulator
from c2v_sim.algorithms import ALGORITHMS
from c2v_sim.system import ranks
from c2v_sim.system.ranks import torchrun
from c2v_sim.training import aggregation

SIZES = (1, 2, 3, 4)
FEDERATION = image_federation(clients=8, smallest=2)
COMMON = {
    "model": "linear",
    "rounds": 3,
    "participation": 0.5,
    "local_epochs": 1,
    "batch_size": 8,
    "momentum": 0.9,
    "seed": 6,
    "lanes": 1,
}
ALL = ("sampling", "aggregation", "local")
OWN_INDEX = {"improve": ALL, "index_hidden": 8, "index_epochs": 2, "index_dropout": 0.1}
CASES: dict[str, dict] = {
    **{name: {"algorithm": name, "improve": ALL} for name in ALGORITHMS},
    "fedbn": {"algorithm": "fedbn", "improve": ALL, "model": "resnet8"},
    "fedrep": {"algorithm": "fedrep", "improve": ALL, "model": "mlp"},
    "fedproto": {"algorithm": "fedproto", "improve": ALL, "model": "mlp"},
    # At another rate: it trains as FedAvg does, and differs only in tests.
    "fine-tuning": {"algorithm": "fine-tuning", "improve": ALL, "lr": 0.03},
    "cfl": {"algorithm": "cfl", "cfl_ratio": 9.0, "participation": 1.0},
    "clusters": {"algorithm": "scaffold", "improve": ("clustering", "aggregation")},
    "mixed classifiers": {"algorithm": "feddyn", "improve": ("personalization", "sampling")},
    "clusters, norms at home": {"algorithm": "fedbn", "improve": ("clustering",)}
    | {"model": "resnet8", "clusters": 3},
    "power of choice": {"sampling": "power-of-choice"},
    "clustered by size": {"sampling": "clustered-size"},
    "clustered by similarity": {"sampling": "clustered-similarity", "rounds": 4},
    "diverse, sketched": {"sampling": "divfl", "rounds": 4, "update_sketch": 64},
    "stacked": {"participation": 1.0},
    "stacked mlp, three lanes": {"model": "mlp", "lanes": 3},
    "convolutions, two lanes": {"model": "cnn", "lanes": 2, "rounds": 2},
    "stacked convolutions": {"model": "cnn", "stacked": "always", "rounds": 2, "lr": 0.02},
    "statistics": {"model": "resnet8", "algorithm": "feddyn", "rounds": 2},
    "previous models": {"model": "resnet8", "algorithm": "moon", "moon_mu": 1.0},
    "halves": {"algorithm": "feddyn", "state_dtype": "bfloat16"},
    "cohort of two": {"algorithm": "feddyn", "participation": 0.25},
    "cohort of one": {"algorithm": "fediir", "participation": 0.1},
    "index of local models": {"improve": ("local",), "index": "local-model-weights"},
    "global index": OWN_INDEX | {"index_threads": 1},
    "federated index": OWN_INDEX
    | {"index_strategy": "federated", "index_participation": 0.5, "index_local_epochs": 1},
    # The same by columns, which otherwise only large cohorts are summed by.
    "columns": {"algorithm": "fedavgm", "improve": ALL, "lr": 0.02},
    "columns, stacked": {"participation": 1.0, "lr": 0.02},
    "columns, convolutions": {"model": "resnet8", "rounds": 1},
    "columns, cohort of one": {"algorithm": "fediir", "participation": 0.1, "lr": 0.02},
}
OWN_MODELS = {  # named by the settings that they are trained with
    "a module as others write it": {"algorithm": "moon"},
    "a sequence that is stacked": {"participation": 1.0, "lr": 0.03},
}
CASES |= OWN_MODELS
CONTINUED = (
    "feddyn",
    "moon",
    "fedavgm",
    "fedbn",
    "clusters",
    "mixed classifiers",
    "cfl",
    "ditto",
    "diverse, sketched",
    "index of local models",
    "a module as others write it",
)  # after two rounds


def without_seconds(records):
    return [asdict(replace(record, seconds={})) for record in records]


def end_of(simulator: Simulator) -> dict:
    records = without_seconds(simulator.rounds())
    found = {"records": records, "state": bits(simulator.state(), ordered=False)}
    if simulator.index is not None:
        found["index"] = bits({"f": simulator.index.feature, "l": simulator.index.label})
    simulator.close()
    return found


class Others(nn.Module):
    """Frozen convolutions, statistics, and a dropout that is a mere call."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 5, 2).requires_grad_(False)
        self.norm, self.fc = nn.BatchNorm2d(6), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.dropout(self.norm(self.conv(x)).relu(), 0.3, self.training)
        return self.fc(x.mean(dim=(2, 3)))


def own_model(settings: dict) -> nn.Module | None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if settings is OWN_MODELS["a module as others write it"]:
            return Others()
        if settings is OWN_MODELS["a sequence that is stacked"]:
            return nn.Sequential(nn.Flatten(), nn.Linear(768, 9), nn.ReLU(), nn.Linear(9, 4))
    return None


def make(settings: dict, folder: Path) -> Simulator:
    own = "index_hidden" in settings
    data = folder / f"data-{ranks.size()}"  # so that nobody finds an index that another built
    config = RunConfig(**COMMON | settings | {"data_dir": str(data) if own else ""})
    model = own_model(settings)
    return Simulator(FEDERATION, config) if own else simulator_with(FEDERATION, config, model=model)


def go_on(name: str, file: Path, folder: Path) -> dict:
    """The end of a run whose first two rounds were those of one process."""
    simulator = make(CASES[name], folder)
    if ranks.size() == 1:
        rounds = simulator.rounds()
        next(rounds), next(rounds)
        torch.save({k: t.clone() for k, t in simulator.state().items()}, file)
    else:
        simulator.load_state(2, torch.load(file) if ranks.is_first() else {})
    return end_of(simulator)


def all_cases(folder: Path) -> dict:
    found, large = {}, aggregation.LARGE
    for name, settings in CASES.items():
        aggregation.LARGE = 0 if name.startswith("columns") else large
        found[name] = end_of(make(settings, folder))
    aggregation.LARGE = large
    for name in CONTINUED:
        found[f"{name}, continued"] = go_on(name, folder / f"{name}.pt", folder)
    return found


def one_rank(folder: Path) -> int:
    with torchrun.joined(timeout=120):
        found = all_cases(folder)
        if ranks.is_first():
            (folder / f"{ranks.size()}.json").write_text(json.dumps(found))
    return 0


def main(folder: Path) -> int:
    codes = {size: run_ranks(size, lambda: one_rank(folder)) for size in SIZES}
    print(codes)
    return max(code for each in codes.values() for code in each)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
