"""All runs of a report → the plain data that its page draws from.

Tables have a row per group (runs that differ only in their seed) and a row per run; curves are the
mean over a group's seeds with the least and the largest value. Means in tables and of seconds are
of the finished seeds alone, and say so. report/one_run.py does the rest.
"""

import math
from collections.abc import Sequence

import numpy as np

from c2v_sim.algorithms.fedavg import GLOBAL
from c2v_sim.index.client_index import BUILT
from c2v_sim.report.clients import PlainData, rounded
from c2v_sim.report.gains import gain_text, gain_words, gains
from c2v_sim.report.groups import Group
from c2v_sim.report.one_run import (
    Pool,
    accuracy_cells,
    best_and_last,
    mean_and_spread,
    rounds_words,
    run_data,
)
from c2v_sim.report.runs import ENCODER_STAND_INS, Unstarted, standins
from c2v_sim.run.files import ACCURACIES
from c2v_sim.run.reader import Run
from c2v_sim.simulator.records import STAGES


def document(groups: Sequence[Group]) -> PlainData:
    """Everything the page shows, as plain data."""
    pool = Pool()
    runs = [(run, group.label) for group in groups for run in group.runs]
    unstarted = [(cell, group.label) for group in groups for cell in group.unstarted]
    begun = [run for run, _ in runs]
    return {
        "banners": [*unfinished_words(groups), *standins(begun, len(runs) + len(unstarted))],
        "summary": summary_table(groups),
        "words": summary_words(begun),
        "gains": " ".join(gain_words(groups)),
        "every_run": run_table(runs, unstarted),
        "measures": ACCURACIES,
        "groups": [group_data(group) for group in groups if group.runs],
        "runs": [run_data(run, label, pool) for run, label in runs],
        "pool": pool.values,
    }


# ---- all runs -------------------------------------------------------------------------------


def unfinished_words(groups: Sequence[Group]) -> list[str]:
    """A sentence about runs without a result, of which no mean is made."""
    states = [run.state for group in groups for run in group.everyone]
    failed, going = states.count("failed"), states.count("unfinished")
    if not failed and not going:
        return []
    if len(states) == 1:
        return [f"This run {'failed' if failed else 'is not finished'}: its numbers are so far."]
    said = []
    if failed:
        said.append(f"{failed} of {len(states)} runs failed: the table of every run says why")
    if going:
        said.append(f"{going} of {len(states)} runs {'is' if going == 1 else 'are'} not finished")
    return [
        f"{'; '.join(said)}. Means are over the finished seeds of an experiment, or over all of "
        "them so far where none is finished."
    ]


def settings_cells(group: Group) -> list[str]:
    improve = ", ".join(group.facts.get("improve") or []) or "–"
    encoder = next((run.encoder for run in group.runs if run.encoder), None)
    if encoder and improve != "–":
        stand_in = "stand-in " if encoder in ENCODER_STAND_INS else ""
        improve += f" ({stand_in}encoder {encoder})"
    return [*(str(group.facts.get(name)) for name in ("data", "model", "algorithm")), improve]


COLUMNS_OF_TABLE = ["data set", "model", "algorithm", "improved by the index"]


def summary_table(groups: Sequence[Group]) -> PlainData:
    """A row per group: mean ± population standard deviation over seeds."""
    rows, compared = [], any(gains(group, groups) for group in groups)
    for group in groups:
        rounds = "; ".join(dict.fromkeys(rounds_words(run) for run in group.runs))
        gained = [gain_text(gains(group, groups))] if compared else []
        seconds = [run.cost.total for run in group.counted]
        rows.append(
            [
                # the result first: a phone shows no more without scrolling
                *(group.label, *mean_cells(group), *gained),
                *(seeds_cell(group), *settings_cells(group)),
                *(rounds or "–", f"{np.mean(seconds):.1f}" if seconds else "–"),
            ]
        )
    head = ["experiment", "best", "last", *(["gain (points)"] if compared else [])]
    head += ["seed(s)", *COLUMNS_OF_TABLE, "rounds", "seconds per run"]
    return {"head": head, "rows": rows}


def mean_cells(group: Group) -> list[str]:
    """`43.2 ± 0.7 % (2 of 3 seeds)`: best and last of the finished seeds, or else so far."""
    scores = [s for run in group.counted if (s := best_and_last(run))]
    if not scores:
        return ["–", "–"]
    fewer = len(group.finished) < len(group.everyone)
    note = f" ({len(group.finished)} of {len(group.everyone)} seeds)" if fewer else ""
    note = note if group.finished else " so far"
    return [mean_and_spread(values) + note for values in zip(*scores, strict=True)]


def seeds_cell(group: Group) -> str:
    """`0, 1; failed: 2`."""
    said = []
    for state in ("done", "unfinished", "failed"):
        seeds = [str(run.config.get("seed")) for run in group.everyone if run.state == state]
        if seeds:
            said.append(("" if state == "done" else f"{state}: ") + ", ".join(seeds))
    return "; ".join(said)


def summary_words(runs: Sequence[Run]) -> str:
    """How the numbers of the table are meant, and what makes runs hard to compare."""
    kinds = sorted({str(run.manifest.get("tested", GLOBAL)) for run in runs})
    words = [
        f"Accuracy is the mean over clients of the {' or '.join(kinds)} model's accuracy on the "
        "client's own test samples; best is the highest of all rounds, last that of the last one."
    ]
    if len(runs) > 1:
        words.append("Of several seeds: mean ± population standard deviation.")
    words += seconds_words(runs)
    for what, values in (
        ("commits", {run.manifest.get("commit") for run in runs}),
        ("machines", {str(run.manifest.get("machine")) for run in runs}),
    ):
        if len(values) > 1:
            words.append(f"These runs were made on {len(values)} different {what}.")
    return " ".join(words)


def seconds_words(runs: Sequence[Run]) -> list[str]:
    """What the seconds of runs with an index are."""
    steered = [run for run in runs if run.manifest.get("index")]
    if not steered:
        return []
    words = "Seconds are those of the rounds and of the client index"
    borrowed = sum(run.cost.origin not in (BUILT, None) for run in steered)
    if borrowed:
        words += f" ({borrowed} of {len(steered)} took it from the cache or a file: what it took "
        words += "when it was built is counted)"
    lacking = sum(run.cost.index is None for run in steered)
    if lacking:
        words += f"; that of {lacking} indices is not recorded and not counted"
    return [f"{words}."]


def run_table(
    runs: Sequence[tuple[Run, str]], unstarted: Sequence[tuple[Unstarted, str]]
) -> PlainData:
    """A row per run, with the label of its group; those without a run directory last."""
    rows = []
    for run, label in runs:
        state = f"failed: {run.failure}" if run.failure else run.state
        seed, seconds = str(run.config.get("seed")), f"{run.cost.total:.1f}"
        rows.append(
            [run.name, state, *accuracy_cells(run), seed, label, rounds_words(run), seconds]
        )
    for cell, label in unstarted:
        seed, state = str(cell.config.get("seed")), f"failed before it began: {cell.failure}"
        rows.append([cell.name, state, "–", "–", seed, label, "–", "–"])
    return {
        "head": ["run", "state", "best", "last", "seed", "experiment", "rounds", "seconds"],
        "rows": rows,
    }


def group_data(group: Group) -> PlainData:
    """The curves of a group, and its seconds per run by stage, the index among them."""
    by_stage = {
        stage: [sum(r.seconds.get(stage, 0.0) for r in run.records) for run in group.counted]
        for stage in STAGES
    }
    by_stage["index"] = [run.cost.index or 0.0 for run in group.counted]
    seconds = [float(np.mean(values)) for values in by_stage.values()]
    return {
        "label": group.label,
        "runs": len(group.runs),
        "unfinished": sum(run.state != "done" for run in group.runs),
        "curves": {name: curve(group.runs, name) for name in ACCURACIES},
        "seconds": dict(zip(by_stage, rounded(seconds, 3), strict=True)),
    }


def curve(runs: Sequence[Run], measure: str) -> dict[str, Sequence[float | None]]:
    """Mean, least and largest over the runs that evaluated a round, in per cent."""
    values: dict[int, list[float]] = {}
    for run in runs:
        for record in run.evaluated:
            value = getattr(record, measure)
            if value is not None and math.isfinite(value):
                values.setdefault(record.round, []).append(100 * value)
    rounds = sorted(values)
    mean = rounded([float(np.mean(values[t])) for t in rounds])
    out: dict[str, Sequence[float | None]] = {"round": rounds, "mean": mean}
    if len(runs) > 1:
        out["low"] = rounded([min(values[t]) for t in rounds])
        out["high"] = rounded([max(values[t]) for t in rounds])
        out["runs"] = [len(values[t]) for t in rounds]
    return out
