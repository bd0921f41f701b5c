"""What the client index changes: original against +i, +i+ii, +i+ii+iii, several algorithms, seeds.

    python bench/case_studies.py shapes --out runs/case_studies
    python bench/case_studies.py cifar10 --data-dir DIR --out runs/case_studies

i: sampling, ii: aggregation, iii: local training. Each cell is an ordinary run in OUT; finished
cells are not run again, so the grid may be stopped and started. A budget for two CPU cores, not
the paper's: the model is the small cnn, rounds and epochs are few, the encoder is the builtin one.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import mean, pstdev

from c2v_sim import run_directory
from c2v_sim.run import main

IMPROVEMENTS = {
    "original": (),
    "+i": ("sampling",),
    "+i+ii": ("sampling", "aggregation"),
    "+i+ii+iii": ("sampling", "aggregation", "local"),
}
COMMON = ["--model", "cnn", "--batch-size", "32", "--lr", "0.05", "--index-dropout", "0"]
BUDGETS = {
    # 6 domains × 10 clients of 150 images
    "shapes": [
        *("--dataset", "shapes", "--train-size", "9000", "--test-size", "1800"),
        *("--partition", "by-domain", "--clients-per-domain", "10", "--rounds", "16"),
        *("--local-epochs", "2", "--eval-every", "2", "--index-epochs", "6"),
    ],
    # 100 clients of 500 images, label shift
    "cifar10": [
        *("--dataset", "cifar10", "--require-real-data", "--clients", "100", "--alpha", "0.1"),
        *("--rounds", "12", "--local-epochs", "1", "--eval-every", "3", "--index-epochs", "3"),
    ],
}


def cell(data: str, algorithm: str, variant: str, seed: int, extra: list[str], root: Path) -> Path:
    """The run directory of one cell, trained if it is not there yet."""
    out = root / f"{data}-{algorithm}-{variant.replace('+', '_').strip('_')}-{seed}"
    if (out / run_directory.RESULT).exists():
        return out
    improve = IMPROVEMENTS[variant]
    budget = [*BUDGETS[data], *COMMON]
    if not improve:  # settings of the index would be refused: they have no effect
        budget = without(budget, ("--index-dropout", "--index-epochs"))
    arguments = ["--resume", str(out)] if out.exists() else [*budget, "--out", str(out)]
    if not out.exists():
        arguments += ["--algorithm", algorithm, "--seed", str(seed), *extra]
        arguments += ["--improve", *improve] if improve else []
    if code := main(arguments):
        raise SystemExit(code)
    return out


def without(arguments: list[str], flags: tuple[str, ...]) -> list[str]:
    """`arguments` less the flags and the value after each."""
    dropped = {i + step for i, a in enumerate(arguments) if a in flags for step in (0, 1)}
    return [a for i, a in enumerate(arguments) if i not in dropped]


def row(algorithm: str, best: dict[str, list[float]]) -> str:
    """Mean and population deviation of the best accuracy, and the mean paired difference."""
    shown = []
    for variant, values in best.items():
        text = f"{mean(values):.2f} ± {pstdev(values):.2f}"
        if variant != "original":
            gains = [v - o for v, o in zip(values, best["original"], strict=True)]
            text += f" ({mean(gains):+.2f})"
        shown.append(text)
    return f"| {algorithm} | {' | '.join(shown)} |"


def run(arguments: argparse.Namespace) -> None:
    extra = ["--data-dir", arguments.data_dir] if arguments.data_dir else []
    table = [f"| {arguments.data} | {' | '.join(IMPROVEMENTS)} |", "|---" * 5 + "|"]
    for algorithm in arguments.algorithms:
        best: dict[str, list[float]] = {variant: [] for variant in IMPROVEMENTS}
        for seed in arguments.seeds:
            for variant in IMPROVEMENTS:
                out = cell(arguments.data, algorithm, variant, seed, extra, arguments.out)
                result = json.loads((out / run_directory.RESULT).read_text())
                best[variant].append(100 * result["best_accuracy"])
        table.append(row(algorithm, best))
    print("\n".join(table))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("data", choices=BUDGETS)
    parser.add_argument("--out", type=Path, required=True, help="folder of the run directories")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--algorithms", nargs="+", default=["fedavg", "fedavgm", "feddyn"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    sys.exit(run(parser.parse_args()))
