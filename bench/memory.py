"""The most memory that a run takes, stage by stage.

    python bench/memory.py [--cases cnn resnet18] [--lanes 1 2] [--rounds N]

Every run has a process of its own: uint8 images that are noise, clients of the same size that all
train in every round, FedAvg. A column is the most that was resident until the end of the stage, in
MB, what Python and torch take included; `torch` is `import torch` alone.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

SIZES = {  # model, norm, clients, samples of each, batch size, test samples
    "cnn": ("cnn", "batch", 10, 500, 50, 1_000),
    "resnet18": ("resnet18", "group", 10, 25, 25, 200),
}
STAGES = ("torch", "import", "data", "simulator", "first round", "evaluation", "last round")


def peak() -> float:
    """MB; not ru_maxrss, which a new process inherits from the one that started it."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0]) / 1e6


def stages(case: str, lanes: int, rounds: int) -> list[float]:
    """The peaks of one run, in this process, which must be new."""
    import torch  # noqa: F401

    peaks = [peak()]
    import numpy as np

    import c2v_sim

    peaks.append(peak())
    model, norm, clients, each, batch_size, test = SIZES[case]
    g = np.random.default_rng(0)
    count = clients * each
    x, x_test = (g.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8) for n in (count, test))
    y, y_test = np.arange(count) % 10, np.arange(test) % 10
    owners, owners_test = np.arange(count) % clients, np.arange(test) % clients
    federation = c2v_sim.Federation.from_arrays(
        x, y, owners, x_test=x_test, y_test=y_test, client_ids_test=owners_test
    )
    peaks.append(peak())
    config = c2v_sim.RunConfig(
        model=model, norm=norm, participation=1.0, rounds=rounds, eval_every=rounds,
        local_epochs=1, batch_size=batch_size, lr=1e-3, lanes=lanes,
    )  # fmt: skip
    simulator = c2v_sim.Simulator(federation, config)
    peaks.append(peak())
    work = simulator.rounds()
    next(work)
    peaks.append(peak())
    simulator.evaluate()
    peaks.append(peak())
    for _ in work:
        pass
    return [*peaks, peak()]


def measured(case: str, lanes: int, rounds: int) -> list[float]:
    """`stages` in a process of its own."""
    words = [sys.executable, __file__, "--one", case, "--lanes", str(lanes), "--rounds"]
    run = subprocess.run(
        [*words, str(rounds)], env=os.environ, capture_output=True, text=True, check=True
    )
    return json.loads(run.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--cases", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--lanes", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", choices=SIZES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(stages(options.one, options.lanes[0], options.rounds)))
        return
    print("| case, lanes | " + " | ".join(STAGES) + " |\n|---|" + "---:|" * len(STAGES))
    for case in options.cases:
        for lanes in options.lanes:
            row = measured(case, lanes, options.rounds)
            print(f"| {case}, {lanes} | " + " | ".join(f"{v:.0f}" for v in row) + " |", flush=True)


if __name__ == "__main__":
    main()
