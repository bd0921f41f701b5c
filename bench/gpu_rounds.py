"""Whole rounds on a GPU: 1, 2, 4 and 8 lanes against stacked clients.

    python bench/gpu_rounds.py [--models mlp cnn …] [--batch-sizes 10 32 128] [--json FILE]
    python bench/gpu_rounds.py --tiny

Every way trains the same cohorts of the same uneven clients, one round each in turn, so that what
else the machine does slows all; times are medians over rounds (`--rounds`), after WARM_UP rounds in
which steps are recorded. A model that cannot be stacked has no such column. What `--stacked auto`
chooses is told: where another way is faster, c2v_sim/training/stacked/path.py is wrong. Without a
GPU it runs on the CPU; --tiny is only there to see that it runs.
"""

import argparse
import json
import statistics
from pathlib import Path

import torch
from round_cases import Case, federation

from c2v_sim import RunConfig, Simulator
from c2v_sim.gpu_check.limits import measure, seconds
from c2v_sim.system.errors import ConfigError
from c2v_sim.system.machine import choose_device

LANES = (1, 2, 4, 8)
STACKED = "stacked"
CASES = {
    "mlp": Case("mlp", samples=20_000, clients=100, cohort=10),
    "cnn": Case("cnn", samples=20_000, clients=100, cohort=10),
    "resnet8": Case("resnet8", samples=20_000, clients=100, cohort=10),
    "resnet18": Case("resnet18", samples=5_000, clients=100, cohort=10),
}
TINY = {
    "shape": (16, 16, 3),
    "samples": 60,
    "clients": 5,
    "cohort": 4,
}
WARM_UP = 3  # rounds


def simulator(case: Case, way: int | str, device: torch.device, rounds: int) -> Simulator:
    """`way`: a number of lanes, STACKED, or "auto", what a run does by itself."""
    stacked = {STACKED: "always", "auto": "auto"}.get(str(way), "never")
    config = RunConfig(
        model=case.model,
        rounds=rounds,
        cohort=case.cohort,
        local_epochs=case.epochs,
        batch_size=case.batch_size,
        lr=0.01,
        eval_every=0,
        device=device.type,
        lanes=way if isinstance(way, int) else 2,
        stacked=stacked,
    )
    return Simulator(federation(case), config)


def times_of(case: Case, device: torch.device, rounds: int, lanes: tuple[int, ...]) -> dict:
    """Median seconds of a round by the way, what auto chooses, and how many steps were recorded."""
    runs: dict[int | str, Simulator] = {}
    for way in (*lanes, STACKED):
        try:
            runs[way] = simulator(case, way, device, WARM_UP + rounds)
        except ConfigError as error:
            print(f"  {case.model}: {error}")
    auto = simulator(case, "auto", device, 1)
    chosen = STACKED if auto.path.stacked else "lanes"
    auto.close()
    turns = {way: run.rounds() for way, run in runs.items()}
    times: dict[int | str, list[float]] = {way: [] for way in runs}
    for number in range(WARM_UP + rounds):
        for way, turn in turns.items():
            taken = seconds(lambda turn=turn: next(turn), device)
            if number >= WARM_UP:
                times[way].append(taken)
    found = {
        "seconds": {str(way): statistics.median(values) for way, values in times.items()},
        "recorded": {str(way): run.lanes.recorded for way, run in runs.items()},
        "auto": chosen,
    }
    for run in runs.values():
        run.close()
    return found


def shown(name: str, batch: int, found: dict) -> str:
    cells = [f"{way} {1e3 * value:.1f} ms" for way, value in found["seconds"].items()]
    return f"{name}, batch {batch}: " + ", ".join(cells) + f"; auto: {found['auto']}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[10, 32, 128])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--tiny", action="store_true", help="a few samples, 1 and 2 lanes")
    options = parser.parse_args(arguments)
    device = choose_device("auto")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    small = {"elements": 1000, "size": 16} if options.tiny else {}
    limits = measure(device, **small)
    print(
        f"{name}, torch {torch.__version__}, {limits['bandwidth'] / 1e9:.0f} GB/s (triad), "
        f"{limits['sgemm'] / 1e9:.0f} GFLOP/s (sgemm); seconds of a round, lanes and stacked"
    )
    rows = []
    for model in options.models:
        for batch in options.batch_sizes:
            case = Case(**(vars(CASES[model]) | {"batch_size": batch}))
            if options.tiny:
                case = Case(**(vars(case) | TINY))
            lanes = LANES[:2] if options.tiny else LANES
            found = times_of(case, device, options.rounds, lanes)
            print(shown(model, batch, found), flush=True)
            rows.append({"model": model, "batch": batch, **found})
    if options.json:
        facts = {"device": name, "torch": torch.__version__, "limits": limits, "rows": rows}
        options.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
