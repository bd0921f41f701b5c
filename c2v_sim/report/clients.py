"""The clients of a run in the report's pictures: their order, what they hold, their accuracies.

Clients are ordered by domain, or else by dominant label: `rank` [M] is a client's place in that
order. At most ROWS rows of clients and COLUMNS columns of rounds are drawn; beyond, neighbours
share one: a client's row is rank · rows // M. Matrices are packed as base64 of small integers.
"""

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from c2v_sim.run.files import JsonObject
from c2v_sim.run.reader import Clients, Run
from c2v_sim.system.text import percent

ROWS, COLUMNS = 128, 200
BINS = 20  # of the histogram of client accuracies
WORST = 10

PlainData = dict[str, object]  # what the page gets, as JSON


def pack(array: np.ndarray) -> PlainData:
    """Whole numbers >= 0 in the smallest unsigned type that holds them, as base64."""
    most = int(array.max(initial=0))
    bits = 8 if most < 2**8 else 16 if most < 2**16 else 32
    data = array.astype(f"<u{bits // 8}").tobytes()
    return {"bits": bits, "data": base64.b64encode(data).decode()}


def rounded(values: Sequence[float] | np.ndarray, digits: int = 2) -> list[float | None]:
    return [round(float(v), digits) if math.isfinite(v) else None for v in values]


def span(values: np.ndarray) -> str:
    low, high = values.min(), values.max()
    return f"{low} to {high}" if low < high else str(low)


@dataclass(frozen=True, eq=False)
class Order:
    """The clients' order in pictures."""

    by: str | None  # domain, dominant label, or nothing
    names: list[str]  # of the groups
    group: np.ndarray  # [M]
    clients: np.ndarray  # [M] client ids in order
    rank: np.ndarray  # [M] the place of each client
    rows: int

    @property
    def row(self) -> np.ndarray:  # [M]
        return self.rank * self.rows // len(self.rank)


def order_clients(clients: Clients, data: JsonObject) -> Order:
    """By domain, or else by dominant label, or else as they are numbered."""
    count = len(clients.sizes)
    by, names, group = None, ["all clients"], np.zeros(count, dtype=np.int64)
    if clients.domains is not None:
        by, names, group = "domain", data.get("domains") or [], clients.domains
    elif clients.label_counts is not None:
        by, names = "dominant label", data.get("classes") or []
        group = clients.label_counts.argmax(1)
    names = [*names, *(str(i) for i in range(len(names), int(group.max()) + 1))]
    ordered = np.argsort(group, kind="stable")
    rank = np.empty(count, dtype=np.int64)
    rank[ordered] = np.arange(count)
    return Order(by, list(map(str, names)), group, ordered, rank, min(count, ROWS))


def clients_data(run: Run, order: Order) -> PlainData:
    """Rows, groups and class counts: the partition."""
    counts, total = run.clients.label_counts, len(run.clients.sizes)
    present, begins = np.unique(order.group[order.clients], return_index=True)
    ends = [*begins[1:].tolist(), total]
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
        "counts": None if counts is None else pack(sums_by_row(counts, order)),
        "caption": clients_caption(run.clients),
    }


def sums_by_row(counts: np.ndarray, order: Order) -> np.ndarray:  # [M, K] -> [R, K]
    out = np.zeros((order.rows, counts.shape[1]), dtype=np.int64)
    np.add.at(out, order.row, counts)
    return out


def clients_caption(clients: Clients) -> str:
    sizes, counts = clients.sizes, clients.label_counts
    median = f"{np.median(sizes):g}"
    words = f"{len(sizes)} clients with {span(sizes)} training samples (median {median})"
    if counts is not None:
        held = (counts > 0).sum(1)
        top = counts.max(1) / counts.sum(1).clip(min=1)
        words += (
            f", of {span(held)} of {counts.shape[1]} classes; the commonest class "
            f"of a client has {percent(top.mean(), 0)} of its samples on average"
        )
    return words + "."


def accuracy_data(run: Run, order: Order) -> PlainData | None:
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
    return {
        "counts": counts.tolist(),
        "caption": f"{len(known)} clients with test samples: mean {percent(known.mean(), 1)}, "
        f"median {percent(np.median(known), 1)}, from {100 * known.min():.1f} to "
        f"{percent(known.max(), 1)}.",
        "worst": worst_table(run, order, accuracy, worst),
    }


def worst_table(run: Run, order: Order, accuracy: np.ndarray, worst: np.ndarray) -> PlainData:
    """A row for each of the clients `worst`."""
    taken = np.bincount([c for r in run.records for c in r.cohort], minlength=len(accuracy))
    rows = []
    for client in worst.tolist():
        cells = [str(client), percent(accuracy[client], 1)]
        cells += [order.names[order.group[client]]] if order.by else []
        held = run.clients.sizes[client], run.clients.test_sizes[client], taken[client]
        rows.append(cells + [str(v) for v in held])
    head = ["client", "accuracy", *([order.by] if order.by else [])]
    return {"head": [*head, "training samples", "test samples", "times sampled"], "rows": rows}
