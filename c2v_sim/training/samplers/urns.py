"""Clustered sampling: k urns hold all clients, one is drawn from each (Fraboni et al., 2021).

Client i has k N_i tickets, an urn has room for N = sum N_i of them, so all k urns are full. One
ticket is drawn from every urn and counts 1/k. A client's expected weight is then

    1/k sum_j r_ji = N_i / N         r_ji: its share of the tickets of urn j

however the tickets are laid into the urns: the mean is unbiased, and its variance at most that of k
draws by size. A client with tickets in several urns can be drawn several times; it trains once. By
size, the largest client first, each goes on where the last one ended:

    clients   | 0 0 0 0 0 1 | 1 1 1 2 2 2 | 3 3 4 4 5 6 |        k = 3 urns

All tickets lie on one line; urn j is the j-th piece of N. Integers throughout, O(M) of them, made
once, and a round takes O(k log M).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from c2v_sim.system.seeding import SAMPLING, rng
from c2v_sim.training.samplers.sampler import Sampler


class Line(NamedTuple):
    """The tickets of all urns: those of `ids[i]` end before place `ends[i]`."""

    ids: np.ndarray  # int64 [L], a client may come several times
    ends: np.ndarray  # int64 [L], ascending, the last is k N

    @classmethod
    def of(cls, ids: np.ndarray, tickets: np.ndarray) -> "Line":
        return cls(ids, np.cumsum(tickets))

    def draw(self, k: int, generator: np.random.Generator) -> np.ndarray:  # [k]
        """The client of one ticket from each of the k urns."""
        room = self.ends[-1] // k
        places = room * np.arange(k) + generator.integers(0, room, size=k)
        return self.ids[np.searchsorted(self.ends, places, side="right")]


@dataclass
class ClusteredBySize(Sampler):
    weighs_answers = True

    def __post_init__(self) -> None:
        self._known: tuple[np.ndarray, int, Line] | None = None  # of these sizes and this k

    def __call__(self, seed: int, t: int, sizes: np.ndarray, k: int) -> np.ndarray:
        if self._known is None or self._known[0] is not sizes or self._known[1] != k:
            self._known = sizes, k, by_size(sizes, k)
        return self._known[2].draw(k, rng(seed, SAMPLING, t))


def by_size(sizes: np.ndarray, k: int) -> Line:
    """The largest client first, the lower id among equals."""
    order = np.argsort(-sizes, kind="stable")
    return Line.of(order, k * sizes[order].astype(np.int64))
