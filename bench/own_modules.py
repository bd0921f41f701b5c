"""The same network as a user's own nn.Module and as the built-in model: CPU seconds of rounds.

    python bench/own_modules.py [--models cnn resnet18] [--rounds N]

Both train the same clients on one lane and alternate round by round, in an order that alternates
too; the ratio is the median of those of single rounds. The user's cnn is a plain nn.Sequential with
ReLU before the pool, as most people write it; the user's resnet18 (group norm) only has a forward.
"""

import argparse
import statistics
import time

from round_cases import CASES, Case, config, federation
from torch import nn

from c2v_sim import Simulator
from c2v_sim.models import build_model

OWN = {  # samples are few: a round takes a second
    "cnn": Case("cnn", samples=2_000, clients=10, cohort=4, uneven=False),
    "resnet18": Case("resnet18", samples=200, clients=4, cohort=2, uneven=False, batch_size=25),
}


def own_cnn() -> nn.Module:
    first = (nn.Conv2d(3, 32, 5), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2))
    rest = (nn.Flatten(), nn.Linear(1600, 512), nn.ReLU(), nn.Linear(512, 10))
    return nn.Sequential(*first, *second, *rest)


def own_resnet18() -> nn.Module:
    whole = build_model(
        "resnet18", classes=10, input_shape=CASES["cnn"].shape, norm="group", seed=0
    )
    return Whole(whole)


class Whole(nn.Module):
    """A network that only has a forward."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--models", nargs="+", choices=OWN, default=list(OWN))
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    for name in options.models:
        case, own = OWN[name], {"cnn": own_cnn, "resnet18": own_resnet18}[name]()
        built_in = build_model(
            name, classes=10, input_shape=case.shape, seed=0,
            **({"norm": "group"} if name == "resnet18" else {}),
        )  # fmt: skip
        data = federation(case)
        runs = [Simulator(data, config(case, 1), model=m).rounds() for m in (built_in, own)]
        seconds: list[list[float]] = [[], []]
        for t in range(options.rounds + 1):
            for which in (0, 1) if t % 2 else (1, 0):
                begin = time.process_time()
                next(runs[which])
                seconds[which].append(time.process_time() - begin)
        ratio = statistics.median(b / a for a, b in zip(*(s[1:] for s in seconds), strict=True))
        medians = [statistics.median(s[1:]) for s in seconds]
        print(f"{name}: built-in {medians[0]:.2f} s, own {medians[1]:.2f} s, ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
