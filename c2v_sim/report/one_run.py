"""One run → the plain data of its figures.

Matrices are packed as base64 of small integers, and what several runs have in common (clients,
index, parts of the manifest) is kept once, in a `Pool`. At most ROWS rows of clients and COLUMNS
columns of rounds are drawn: beyond, neighbours share a row or a column.

Clients are ordered by domain, or else by dominant label, in all pictures: `rank` [M] is a client's
place in that order, its row is rank · rows // M.
"""

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from c2v_sim.report.clients import COLUMNS, Order, order_clients, pack, rounded
from c2v_sim.report.domains import domain_data
from c2v_sim.report.index import index_data
from c2v_sim.report.runs import Run

BINS = 20  # of the histogram of client accuracies
WORST = 10
STAGES = ("sample", "train", "aggregate", "evaluate")


class Pool:
    """Values that several runs share, each kept once; `add` gives its number."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[str, int] = {}

    def add(self, value: Any) -> int:
        text = json.dumps(value)
        if text not in self._numbers:
            self._numbers[text] = len(self.values)
            self.values.append(value)
        return self._numbers[text]


def percent(values: Sequence[float]) -> str:
    """`43.2 %`, or of several seeds `43.2 ± 0.7 %`."""
    if not values:
        return "–"
    mean = f"{100 * np.mean(values):.1f}"
    return f"{mean} ± {100 * np.std(values):.1f} %" if len(values) > 1 else f"{mean} %"


def best_and_last(run: Run) -> tuple[float, float] | None:
    values = [r.accuracy for r in run.evaluated if r.accuracy is not None]
    return (max(values), values[-1]) if values else None


def accuracy_cells(run: Run) -> list[str]:
    """Best and last, `41.0 % so far` of a run that has no result."""
    scores = best_and_last(run)
    note = "" if run.state == "done" else " so far"
    return [percent([score]) + note for score in scores] if scores else ["–", "–"]


def run_data(run: Run, label: str, pool: Pool) -> dict[str, Any]:
    """What the figures of one run show."""
    order = order_clients(run.clients, run.manifest["data"])
    best, last = accuracy_cells(run)
    state = "" if run.state == "done" else f", {run.state}"
    return {
        "name": run.name,
        "label": label,
        "seed": run.config.get("seed"),
        "state": run.state,
        "failure": run.failure,
        "facts": f"{run.manifest['data']['name']}, {run.manifest['partition'].get('convention')}, "
        f"{len(run.clients.sizes)} clients; rounds: {run.rounds}{state}; "
        + (f"best {best}, last {last}" if run.evaluated else "no accuracy"),
        "clients": pool.add(clients_data(run, order)),
        "domains": domain_data(run, order),
        "cohorts": cohort_data(run, order),
        "accuracy": accuracy_data(run, order),
        "index": None if run.index is None else pool.add(index_data(run.index, order)),
        "seconds": seconds_data(run),
        "missing": missing_words(run),
        "manifest": [[k, pool.add(rows_of(v))] for k, v in run.manifest.items()],
        "settings": pool.add([[k, text_of(v)] for k, v in run.config.items() if k != "seed"]),
    }


def span(values: np.ndarray) -> str:
    low, high = values.min(), values.max()
    return f"{low} to {high}" if low < high else str(low)


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


def clients_data(run: Run, order: Order) -> dict[str, Any]:
    """Rows, groups and class counts: the partition."""
    counts, sizes, total = run.clients.label_counts, run.clients.sizes, len(run.clients.sizes)
    sorted_groups = order.group[order.clients]
    present, begins = np.unique(sorted_groups, return_index=True)
    ends = [*begins[1:].tolist(), total]
    caption = f"{total} clients with {span(sizes)} training samples (median {np.median(sizes):g})"
    packed = None
    if counts is not None:
        held = (counts > 0).sum(1)
        top = counts.max(1) / counts.sum(1).clip(min=1)
        caption += (
            f", of {span(held)} of {counts.shape[1]} classes; the commonest class "
            f"of a client has {100 * top.mean():.0f} % of its samples on average"
        )
        by_row = np.zeros((order.rows, counts.shape[1]), dtype=np.int64)
        np.add.at(by_row, order.row, counts)
        packed = pack(by_row)
    first = np.searchsorted(order.row[order.clients], np.arange(order.rows))
    return {
        "total": total,
        "rows": order.rows,
        "by": order.by,
        "groups": [
            {"name": order.names[g], "begin": b * order.rows / total, "end": e * order.rows / total}
            for g, b, e in zip(present.tolist(), begins.tolist(), ends, strict=True)
        ],
        "first": pack(first),  # the place in the order of a row's first client
        "order": pack(order.clients) if order.rows == total else None,
        "classes": [str(c) for c in run.manifest["data"].get("classes") or []],
        "counts": packed,
        "caption": caption + ".",
    }


def cohort_data(run: Run, order: Order) -> dict[str, Any] | None:
    """Who was sampled when, with which weight: cells of rows × columns that are not empty."""
    if not run.records:
        return None
    cohort = np.concatenate([r.cohort for r in run.records]).astype(np.int64)
    weights = np.concatenate([r.weights for r in run.records]).astype(np.float64)
    places = np.repeat(np.arange(len(run.records)), [len(r.cohort) for r in run.records])
    width = math.ceil(len(run.records) / COLUMNS)  # rounds a column
    cell = places // width * order.rows + order.row[cohort]
    cells, inverse, times = np.unique(cell, return_inverse=True, return_counts=True)
    mean = np.bincount(inverse, weights) / times
    top = float(mean.max(initial=0.0)) or 1.0
    taken = np.bincount(cohort, minlength=len(order.rank))
    return {
        "cells": pack(cells),
        "times": pack(times) if times.max() > 1 else None,
        "weights": pack(np.round(mean / top * 65535).astype(np.int64)),
        "top": top,
        "equal": round(100 * len(run.records) / len(cohort), 4),  # per cent
        "width": width,
        "first": run.records[0].round,
        "rounds": len(run.records),
        "cohort_caption": f"{len(run.records)} rounds, cohorts of {len(run.records[-1].cohort)}. "
        f"A client took part {span(taken)} times; "
        f"{int((taken == 0).sum())} of {len(taken)} never did.",
        "weight_caption": weight_caption(run, weights, cohort, places),
    }


def weight_caption(run: Run, weights: np.ndarray, cohort: np.ndarray, places: np.ndarray) -> str:
    sizes = run.clients.sizes[cohort].astype(np.float64)
    share = sizes / np.bincount(places, sizes)[places]  # FedAvg's
    away = 100 * np.abs(weights - share).max()
    low, high = f"{100 * weights.min():.1f}", f"{100 * weights.max():.1f}"
    lies = f"lies between {low} and {high} %" if low != high else f"is {low} %"
    return (
        f"A sampled client's weight {lies} of the new global model, at most {away:.2f} percentage "
        "points from its share of the cohort's training samples. The line marks equal shares."
    )


def accuracy_data(run: Run, order: Order) -> dict[str, Any] | None:
    """Histogram and the worst clients at the end of the run."""
    values = (run.result or {}).get("final_client_accuracy")
    if not values:
        return None
    accuracy = np.array([np.nan if v is None else v for v in values], dtype=np.float64)
    tested = np.flatnonzero(np.isfinite(accuracy))
    if not len(tested):
        return None
    known = accuracy[tested]
    counts, _ = np.histogram(known, bins=BINS, range=(0.0, 1.0))
    worst = tested[np.argsort(known, kind="stable")[:WORST]]
    taken = np.bincount([c for r in run.records for c in r.cohort], minlength=len(accuracy))
    rows = []
    for client in worst.tolist():
        cells = [str(client), f"{100 * accuracy[client]:.1f} %"]
        cells += [order.names[order.group[client]]] if order.by else []
        held = run.clients.sizes[client], run.clients.test_sizes[client], taken[client]
        rows.append(cells + [str(v) for v in held])
    head = ["client", "accuracy", *([order.by] if order.by else [])]
    low, high = 100 * known.min(), 100 * known.max()
    return {
        "counts": counts.tolist(),
        "caption": f"{len(known)} clients with test samples: mean {100 * known.mean():.1f} %, "
        f"median {100 * np.median(known):.1f} %, from {low:.1f} to {high:.1f} %.",
        "worst": {
            "head": [*head, "training samples", "test samples", "times sampled"],
            "rows": rows,
        },
    }


def seconds_data(run: Run) -> dict[str, Any] | None:
    """Seconds of each stage by column of rounds, and in all."""
    if not run.records:
        return None
    table = np.array([[r.seconds.get(s, 0.0) for s in STAGES] for r in run.records])
    width = math.ceil(len(table) / COLUMNS)
    parts = [table[i : i + width].mean(0) for i in range(0, len(table), width)]
    totals = table.sum(0)
    shares = 100 * totals / max(totals.sum(), 1e-12)
    said = ", ".join(
        f"{name} {seconds:.3g} s ({share:.0f} %)"
        for name, seconds, share in zip(STAGES, totals, shares, strict=True)
    )
    return {
        "width": width,
        "first": run.records[0].round,
        "stages": {s: rounded(np.array(parts)[:, i], 4) for i, s in enumerate(STAGES)},
        "caption": f"{totals.sum():.3g} s in {len(table)} rounds: {said}. Loading data and "
        f"writing checkpoints are not in it{index_words(run)}.",
    }


def index_words(run: Run) -> str:
    """What the client index took, which is made before the first round."""
    about = run.manifest.get("index")
    if not about:
        return ""
    seconds = about.get("seconds")
    took = "an unrecorded time" if seconds is None else f"{seconds:.3g} s"
    return f", nor is making the client index, which took {took}"


def text_of(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(text_of, value)) or "–"
    return "–" if value is None or value == "" else str(value)


def rows_of(value: Any, prefix: str = "") -> list[list[str]]:
    """A part of the manifest as rows of name and text; names of nested parts joined by dots."""
    if not isinstance(value, dict):
        return [[prefix, text_of(value)]]
    rows = []
    for name, inner in value.items():
        rows += rows_of(inner, f"{prefix}.{name}" if prefix else str(name))
    return rows
