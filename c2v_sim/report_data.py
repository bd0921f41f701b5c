"""All runs of a report → the plain data that its page draws from.

Tables have a row a group (runs that differ only in their seed) and a row a run; curves are the
mean over a group's seeds with the least and the largest value. report_one_run.py does the rest.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from c2v_sim.report_clients import rounded
from c2v_sim.report_one_run import STAGES, Pool, best_and_last, percent, run_data
from c2v_sim.report_runs import ENCODER_STAND_INS, Group, Run, standins

MEASURES = {
    "accuracy": "mean over clients",
    "accuracy_global": "whole test set",
    "accuracy_weighted": "weighted by samples",
    "accuracy_worst10": "worst 10 % of clients",
}


def document(groups: Sequence[Group]) -> dict[str, Any]:
    """Everything the page shows, as plain data."""
    pool = Pool()
    runs = [run for group in groups for run in group.runs]
    numbers = [i for i, group in enumerate(groups) for _ in group.runs]
    return {
        "standins": standins(runs),
        "summary": summary_table(groups),
        "words": summary_words(runs),
        "every_run": run_table(runs, groups, numbers),
        "measures": MEASURES,
        "groups": [group_data(group) for group in groups],
        "runs": [
            run_data(run, groups[i].label, pool) for run, i in zip(runs, numbers, strict=True)
        ],
        "pool": pool.values,
    }


# ---- all runs -------------------------------------------------------------------------------


def settings_cells(run: Run) -> list[str]:
    improve = ", ".join(run.config.get("improve") or []) or "–"
    if run.encoder and improve != "–":
        stand_in = "stand-in " if run.encoder in ENCODER_STAND_INS else ""
        improve += f" ({stand_in}encoder {run.encoder})"
    named = (run.config.get("model"), run.config.get("algorithm"))
    return [run.manifest["data"]["name"], *map(str, named), improve]


COLUMNS_OF_TABLE = ["data set", "model", "algorithm", "improved by the index"]


def summary_table(groups: Sequence[Group]) -> dict[str, Any]:
    """A row a group: mean ± population standard deviation over seeds."""
    rows = []
    for group in groups:
        scores = [s for run in group.runs if (s := best_and_last(run))]
        seeds = ", ".join(str(run.config.get("seed")) for run in group.runs)
        rounds = "; ".join(dict.fromkeys(run.rounds for run in group.runs))
        rows.append(
            [
                # the result first: a phone shows no more without scrolling
                *(group.label, percent([best for best, _ in scores])),
                *(percent([last for _, last in scores]), seeds, *settings_cells(group.runs[0])),
                *(rounds, f"{np.mean([run.seconds for run in group.runs]):.1f}"),
            ]
        )
    head = ["experiment", "best", "last", "seed(s)", *COLUMNS_OF_TABLE, "rounds", "seconds a run"]
    return {"head": head, "rows": rows}


def summary_words(runs: Sequence[Run]) -> str:
    """How the numbers of the table are meant, and what makes runs hard to compare."""
    words = [
        "Accuracy is the mean over clients of the global model's accuracy on the client's own test "
        "samples; best is the highest of all rounds, last that of the last one."
    ]
    if len(runs) > 1:
        words.append("Of several seeds: mean ± population standard deviation.")
    for what, values in (
        ("commits", {run.manifest.get("commit") for run in runs}),
        ("machines", {str(run.manifest.get("machine")) for run in runs}),
    ):
        if len(values) > 1:
            words.append(f"These runs were made on {len(values)} different {what}.")
    return " ".join(words)


def run_table(runs: Sequence[Run], groups: Sequence[Group], numbers: list[int]) -> dict[str, Any]:
    """A row a run."""
    rows = []
    for run, number in zip(runs, numbers, strict=True):
        scores = best_and_last(run)
        shown = [percent([s]) for s in scores] if scores else ["–", "–"]
        seed = str(run.config.get("seed"))
        rows.append(
            [run.name, groups[number].label, seed, *shown, run.rounds, f"{run.seconds:.1f}"]
        )
    return {
        "head": ["run", "experiment", "seed", "best", "last", "rounds", "seconds"],
        "rows": rows,
    }


def group_data(group: Group) -> dict[str, Any]:
    """The curves of a group, and its seconds a run by stage."""
    by_stage = [
        sum(r.seconds.get(s, 0.0) for r in run.records) for s in STAGES for run in group.runs
    ]
    seconds = np.array(by_stage).reshape(len(STAGES), -1).mean(1)
    return {
        "label": group.label,
        "runs": len(group.runs),
        "unfinished": sum(run.result is None for run in group.runs),
        "curves": {name: curve(group.runs, name) for name in MEASURES},
        "seconds": dict(zip(STAGES, rounded(seconds, 3), strict=True)),
    }


def curve(runs: Sequence[Run], measure: str) -> dict[str, list[float | None]]:
    """Mean, least and largest over the runs that evaluated a round, in per cent."""
    values: dict[int, list[float]] = {}
    for run in runs:
        for record in run.evaluated:
            value = getattr(record, measure)
            if value is not None and math.isfinite(value):
                values.setdefault(record.round, []).append(100 * value)
    rounds = sorted(values)
    out: dict[str, Any] = {
        "round": rounds,
        "mean": rounded([float(np.mean(values[t])) for t in rounds]),
    }
    if len(runs) > 1:
        out["low"] = rounded([min(values[t]) for t in rounds])
        out["high"] = rounded([max(values[t]) for t in rounds])
        out["runs"] = [len(values[t]) for t in rounds]
    return out
