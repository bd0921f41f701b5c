"""One run → the plain data of its figures.

What several runs have in common (clients, index, parts of the manifest) is kept once, in a
`Pool`. report/clients.py says how clients and rounds are drawn.
"""

import json
from collections.abc import Sequence

import numpy as np

from c2v_sim.algorithms.fedavg import GLOBAL
from c2v_sim.report.clients import PlainData, accuracy_data, clients_data, order_clients
from c2v_sim.report.index import index_data
from c2v_sim.report.models import changes_data, projection_data
from c2v_sim.report.rounds import cohort_data, domain_data, seconds_data
from c2v_sim.run.reader import Run
from c2v_sim.system.text import percent


class Pool:
    """Values that several runs share, each kept once; `add` gives its number."""

    def __init__(self) -> None:
        self.values: list[object] = []
        self._numbers: dict[str, int] = {}

    def add(self, value: object) -> int:
        text = json.dumps(value)
        if text not in self._numbers:
            self._numbers[text] = len(self.values)
            self.values.append(value)
        return self._numbers[text]


def mean_and_spread(values: Sequence[float]) -> str:
    """`43.2 %`, or of several seeds `43.2 ± 0.7 %`."""
    mean = percent(float(np.mean(values)), 1)
    if len(values) == 1:
        return mean
    return f"{mean.removesuffix(' %')} ± {percent(float(np.std(values)), 1)}"


def best_and_last(run: Run) -> tuple[float, float] | None:
    values = [r.accuracy for r in run.evaluated if r.accuracy is not None]
    return (max(values), values[-1]) if values else None


def accuracy_cells(run: Run) -> list[str]:
    """Best and last, `41.0 % so far` of a run that has no result."""
    scores = best_and_last(run)
    note = "" if run.state == "done" else " so far"
    return [percent(score, 1) + note for score in scores] if scores else ["–", "–"]


def rounds_words(run: Run) -> str:
    """All rounds, or how many of how many."""
    done = len(run.records)
    return str(done) if run.result else f"{done} of {run.config.get('rounds', 0)}"


def run_data(run: Run, label: str, pool: Pool) -> PlainData:
    """What the figures of one run show."""
    order = order_clients(run.clients, run.manifest["data"])
    return {
        "name": run.name,
        "label": label,
        "seed": run.config.get("seed"),
        "state": run.state,
        "failure": run.failure,
        "facts": facts_words(run),
        "clients": pool.add(clients_data(run, order)),
        "domains": domain_data(run, order),
        "cohorts": cohort_data(run, order),
        "accuracy": accuracy_data(run, order),
        "projection": projection_data(run),
        "changes": changes_data(run),
        "index": None if run.index is None else pool.add(index_data(run.index, order)),
        "seconds": seconds_data(run),
        "missing": missing_words(run),
        "manifest": [[k, pool.add(rows_of(v))] for k, v in run.manifest.items()],
        "settings": pool.add([[k, text_of(v)] for k, v in run.config.items() if k != "seed"]),
    }


def facts_words(run: Run) -> str:
    """Data, partition, rounds and accuracy in one line."""
    data, partition = run.manifest["data"], run.manifest["partition"]
    best, last = accuracy_cells(run)
    state = "" if run.state == "done" else f", {run.state}"
    return (
        f"{data['name']}, {partition.get('convention')}, {len(run.clients.sizes)} clients; "
        f"rounds: {rounds_words(run)}{state}; "
        + (f"{tested_words(run)}best {best}, last {last}" if run.evaluated else "no accuracy")
    )


def tested_words(run: Run) -> str:
    """`personal models (not personal 31.0 %; never trained on: global 30.1 %), `; empty for the one
    global model with nobody held out."""
    last = run.evaluated[-1]
    apart = [f"not personal {percent(last.accuracy_shared, 1)}"] if last.accuracy_shared else []
    never = [f"{kind} {percent(value, 1)}" for kind, value in (last.held_out or {}).items()]
    apart += [f"never trained on: {', '.join(never)}"] if never else []
    if last.tested == GLOBAL and not apart:
        return ""
    return f"{last.tested} models" + (f" ({'; '.join(apart)}), " if apart else ", ")


def missing_words(run: Run) -> str:
    """What is not shown of this run, and why."""
    out = []
    if not run.records:
        out.append("No round is finished yet: there are no cohorts, weights and times.")
    if run.result is None:
        out.append("The accuracy of single clients is known once a run is finished.")
    if run.clients.label_counts is None:
        out.append("The run directory does not say which classes a client holds.")
    if run.index is None:
        used = run.config.get("improve")
        why = "it is not a file of this run" if used else "this run uses none"
        out.append(f"No client index: {why}.")
    return " ".join(out)


def text_of(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(text_of, value)) or "–"
    return "–" if value is None or value == "" else str(value)


def rows_of(value: object, prefix: str = "") -> list[list[str]]:
    """A part of the manifest as rows of name and text; names of nested parts joined by dots."""
    if not isinstance(value, dict):
        return [[prefix, text_of(value)]]
    rows = []
    for name, inner in value.items():
        rows += rows_of(inner, f"{prefix}.{name}" if prefix else str(name))
    return rows
