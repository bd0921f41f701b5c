"""The same network as a user's own nn.Module and as the built-in model: CPU seconds of rounds.

    python bench/own_modules.py [--models cnn resnet18 mlp] [--rounds N]

All train the same clients on one lane and alternate, in an order that alternates too; the ratio is
the median of those of single turns. The user's cnn is a plain nn.Sequential with ReLU before the
pool, as most people write it; the user's resnet18 (group norm) only has a forward. The mlp is
64-64-10 for 100 clients of 20 samples, once as nn.Sequential, once with nn.Flatten before it, once
as a class; a turn is 20 rounds of it.
"""

import argparse
import statistics
import time
from collections.abc import Iterator

from round_cases import Case, config, federation
from torch import nn

from c2v_sim import Simulator
from c2v_sim.models import build_model
from c2v_sim.models.mlp import MLP

OWN = {  # samples are few: a round takes a second
    "cnn": Case("cnn", samples=2_000, clients=10, cohort=4, uneven=False),
    "resnet18": Case("resnet18", samples=200, clients=4, cohort=2, uneven=False, batch_size=25),
    "mlp": Case(
        "mlp", samples=2_000, clients=100, cohort=100, shape=(64,), uneven=False, batch_size=10
    ),
}
TURN = {"mlp": 20}  # rounds that are timed together


def own_cnn() -> nn.Module:
    first = (nn.Conv2d(3, 32, 5), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2))
    rest = (nn.Flatten(), nn.Linear(1600, 512), nn.ReLU(), nn.Linear(512, 10))
    return nn.Sequential(*first, *second, *rest)


class Whole(nn.Module):
    """A network that only has a forward."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def built_in(name: str) -> nn.Module:
    if name == "mlp":
        return MLP(10, OWN[name].shape, hidden=64)
    norm = {"norm": "group"} if name == "resnet18" else {}
    return build_model(name, classes=10, input_shape=OWN[name].shape, seed=0, **norm)


def own_modules(name: str) -> dict[str, nn.Module]:
    if name == "cnn":
        return {"own": own_cnn()}
    if name == "resnet18":
        return {"own": Whole(built_in(name))}
    layers = (nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return {
        "own": nn.Sequential(*layers),
        "own with Flatten": nn.Sequential(nn.Flatten(), *layers),
        "own class": Whole(built_in(name)),
    }


def cpu_seconds(run: Iterator, rounds: int) -> float:
    begin = time.process_time()
    for _ in range(rounds):
        next(run)
    return time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--models", nargs="+", choices=OWN, default=list(OWN))
    parser.add_argument("--rounds", type=int, default=9, help="turns of each contestant")
    options = parser.parse_args()
    for name in options.models:
        case, turn = OWN[name], TURN.get(name, 1)
        data, models = federation(case), {"built-in": built_in(name)} | own_modules(name)
        runs = {k: Simulator(data, config(case, 1), model=m) for k, m in models.items()}
        stacked = ", ".join(k for k, run in runs.items() if run.path.stacked) or "none"
        print(f"{name} (stacked: {stacked})")
        rounds = {k: run.rounds() for k, run in runs.items()}
        seconds: dict[str, list[float]] = {k: [] for k in runs}
        for t in range(options.rounds + 1):
            for which in runs if t % 2 else reversed(runs):
                seconds[which].append(cpu_seconds(rounds[which], turn))
        first = seconds["built-in"][1:]
        for which, times in seconds.items():
            ratio = statistics.median(b / a for a, b in zip(first, times[1:], strict=True))
            print(f"  {which}: {statistics.median(times[1:]):.3f} s, ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
