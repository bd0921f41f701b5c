"""The order and the rows of clients in the report's pictures, and how numbers are packed.

Clients are ordered by domain, or else by dominant label: `rank` [M] is a client's place in that
order. At most ROWS rows of clients and COLUMNS columns of rounds are drawn; beyond, neighbours
share one: a client's row is rank · rows // M.
"""

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from c2v_sim.report.runs import Clients

ROWS, COLUMNS = 128, 200


def pack(array: np.ndarray) -> dict[str, Any]:
    """Whole numbers >= 0 in the smallest unsigned type that holds them, as base64."""
    most = int(array.max(initial=0))
    bits = 8 if most < 2**8 else 16 if most < 2**16 else 32
    data = array.astype(f"<u{bits // 8}").tobytes()
    return {"bits": bits, "data": base64.b64encode(data).decode()}


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


def order_clients(clients: Clients, data: dict[str, Any]) -> Order:
    """By domain, or else by dominant label, or else as they are numbered."""
    count = len(clients.sizes)
    by, names, group = None, ["all clients"], np.zeros(count, dtype=np.int64)
    if clients.domains is not None:
        by, names, group = "domain", data.get("domains") or [], clients.domains
    elif clients.label_counts is not None:
        by, names, group = (
            "dominant label",
            data.get("classes") or [],
            clients.label_counts.argmax(1),
        )
    names = [*names, *(str(i) for i in range(len(names), int(group.max()) + 1))]
    ordered = np.argsort(group, kind="stable")
    rank = np.empty(count, dtype=np.int64)
    rank[ordered] = np.arange(count)
    return Order(by, list(map(str, names)), group, ordered, rank, min(count, ROWS))


def rounded(values: Sequence[float] | np.ndarray, digits: int = 2) -> list[float | None]:
    return [round(float(v), digits) if math.isfinite(v) else None for v in values]
