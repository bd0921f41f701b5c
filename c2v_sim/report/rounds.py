"""The rounds of a run → what the report draws over them: cohorts, weights, seconds, domains."""

import math

import numpy as np

from c2v_sim.report.clients import COLUMNS, Order, PlainData, pack, rounded, span
from c2v_sim.run.reader import Run
from c2v_sim.simulator.records import STAGES, RoundRecord
from c2v_sim.system.text import percent

UNTESTED = 10001  # in hundredths of a per cent: no client of the domain has test samples


def cohort_data(run: Run, order: Order) -> PlainData | None:
    """Who was sampled when, with which weight: cells of rows × columns that are not empty."""
    if not run.records:
        return None
    cohort = np.concatenate([r.cohort for r in run.records]).astype(np.int64)
    weights = np.concatenate([r.weights for r in run.records]).astype(np.float64)
    places = np.repeat(np.arange(len(run.records)), [len(r.cohort) for r in run.records])
    width = math.ceil(len(run.records) / COLUMNS)  # rounds per column
    cell = places // width * order.rows + order.row[cohort]
    cells, inverse, times = np.unique(cell, return_inverse=True, return_counts=True)
    mean = np.bincount(inverse, weights) / times
    top = float(mean.max(initial=0.0)) or 1.0
    return {
        "cells": pack(cells),
        "times": pack(times) if times.max() > 1 else None,
        "weights": pack(np.round(mean / top * 65535).astype(np.int64)),
        "top": top,
        "equal": round(100 * len(run.records) / len(cohort), 4),  # per cent
        "width": width,
        "first": run.records[0].round,
        "rounds": len(run.records),
        "cohort_caption": cohort_caption(run, np.bincount(cohort, minlength=len(order.rank))),
        "weight_caption": weight_caption(run, weights, cohort, places),
    }


def cohort_caption(run: Run, taken: np.ndarray) -> str:
    return (
        f"{len(run.records)} rounds, cohorts of {len(run.records[-1].cohort)}. A client took part "
        f"{span(taken)} times; {int((taken == 0).sum())} of {len(taken)} never did."
    )


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


def seconds_data(run: Run) -> PlainData | None:
    """Seconds of each stage by column of rounds, and in all."""
    if not run.records:
        return None
    table = np.array([[r.seconds.get(s, 0.0) for s in STAGES] for r in run.records])  # [T, 4]
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
        "caption": f"{index_words(run)}{totals.sum():.3g} s in {len(table)} rounds: {said}. "
        "Loading data and writing checkpoints are not in it.",
    }


def index_words(run: Run) -> str:
    """What the run took in all, and the client index, which is made before the first round."""
    about, cost = run.manifest.get("index"), run.cost
    if not about:
        return ""
    if cost.index is None:
        return "The client index took an unrecorded time, which is in no total. "
    stages = {k: v for k, v in about.get("stages", {}).items() if v is not None}
    said = ", ".join(f"{name} {seconds:.3g} s" for name, seconds in stages.items())
    said = f" ({said})" if said else ""
    return (
        f"{cost.total:.3g} s in all: {cost.index:.3g} s for the client index{said}{cost.where()}, "
    )


def domain_data(run: Run, order: Order) -> PlainData | None:
    """Values [T, D] of at most COLUMNS rounds, the last one among them; None without domains."""
    evaluated = [r for r in run.evaluated if r.accuracy_domains]
    if not evaluated or order.by != "domain":
        return None
    places = np.linspace(0, len(evaluated) - 1, min(len(evaluated), COLUMNS)).round().astype(int)
    drawn = [evaluated[place] for place in places]
    values = np.array([r.accuracy_domains for r in drawn], dtype=np.float64)  # [T, D]
    levels = np.where(np.isnan(values), UNTESTED, np.round(values * 10000)).astype(np.int64)
    return {
        "rounds": pack(np.array([r.round for r in drawn])),
        "values": pack(levels),
        "caption": domain_caption(run, order, evaluated[-1], len(drawn), len(evaluated)),
    }


def domain_caption(run: Run, order: Order, last: RoundRecord, drawn: int, evaluated: int) -> str:
    """The best and the worst domain in the last evaluated round."""
    names = [order.names[domain] for domain in np.unique(order.group)]
    by_domain = zip(last.accuracy_domains or (), names, strict=True)
    known = sorted((value, name) for value, name in by_domain if math.isfinite(value))
    when = f"At the end, in round {last.round}"
    if run.state != "done":
        when = f"In round {last.round}, the last one so far"
    words = "Mean over the clients of a domain."
    if known:
        (low, worst), (high, best) = known[0], known[-1]
        words += f" {when}: best {best} with {percent(high, 1)}, worst {worst} with "
        words += f"{percent(low, 1)}, {100 * (high - low):.1f} percentage points apart."
    if drawn < evaluated:
        words += f" {drawn} of {evaluated} evaluated rounds are drawn."
    return words
