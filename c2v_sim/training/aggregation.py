"""Stage 8: a cohort's rows become the next global model. Algorithms build on `average`.

Where ranks share a run and an algorithm only averages, whole rows need not travel: each rank gets
some columns of all rows, sums these in the order of the clients, and gives the sums to all. A rank
then receives about 2 P numbers, not K P.

In one process of the CPU the rows of such an algorithm need not be kept: a CohortSum adds each as
soon as those before it have been added.
"""

import itertools
import threading
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from c2v_sim import ops
from c2v_sim.ops._dispatch import OPERATORS
from c2v_sim.ops.weighted_sum import add_weighted
from c2v_sim.system import ranks
from c2v_sim.training.arena import Arena, Layout


def shares(prior: Tensor) -> Tensor:  # [k] -> [k]
    """p_i = prior_i / sum prior, in float64; with the clients' sizes the paper's q."""
    prior = prior.double()
    return prior / prior.sum()


def average(server: Arena, cohort: Arena, weights: Tensor) -> None:
    """w = sum_i p_i w_i over the first k rows; batch-norm statistics lie in the row and follow.

    num_batches_tracked, a count, takes the cohort's largest value.
    """
    k = len(weights)
    weights = weights.to(device=server.data.device, dtype=torch.float32)
    if isinstance(cohort, CohortSum):
        cohort.check_sum(weights)
        server.data[0].copy_(cohort.data[0])
        k = 1
    elif cohort.ranks is None:
        ops.weighted_sum(cohort.data[:k], weights, server.data[0])
    else:
        sum_by_columns(cohort.data[:k], cohort.ranks, weights, server.data[0])
    if server.integers.numel():
        server.integers[0] = cohort.integers[:k].amax(dim=0)


class CohortSum(Arena):
    """A cohort of which only the average is wanted: row 0 is the sum of the rows so far.

    Row i is added after row i - 1, whenever it comes, so that the sum has the bits of `average` of
    all rows. Those that come too early wait; clients of one size come nearly in order, so that few
    do.
    """

    def __init__(self, layout: Layout, device: torch.device | str = "cpu") -> None:
        super().__init__(layout, 1, device)
        self._lock = threading.Lock()
        self._spare: list[Arena] = []
        self._waiting: dict[int, Arena] = {}
        self._weights = torch.zeros(0)
        self._next = 0

    def begin(self, weights: Tensor) -> None:  # [k]
        """A new cohort, to be summed with `weights`."""
        self._weights, self._next = weights.float(), 0
        self._spare += self._waiting.values()
        self._waiting.clear()
        self.data.zero_()

    def add(self, row: int, model: Arena) -> None:
        """Client `row` of the cohort ended with row 0 of `model`; from a lane's thread."""
        with self._lock:
            if row != self._next:
                kept = self._spare.pop() if self._spare else Arena(self.layout, 1, self.data.device)
                kept.data.copy_(model.data)
                kept.integers.copy_(model.integers)
                self._waiting[row] = kept
                return
            self._sum(model)
            while self._next in self._waiting:
                kept = self._waiting.pop(self._next)
                self._sum(kept)
                self._spare.append(kept)

    def _sum(self, model: Arena) -> None:
        add_weighted(model.data[0], float(self._weights[self._next]), self.data[0])
        largest = torch.maximum(self.integers, model.integers) if self._next else model.integers
        self.integers.copy_(largest)
        self._next += 1

    def check_sum(self, weights: Tensor) -> None:
        """Refuse where not all rows are summed, or with other weights than `weights` [k]."""
        if self._next != len(weights) or not torch.equal(self._weights, weights):
            raise RuntimeError(
                "average: the rows of this cohort were summed with other weights; an algorithm "
                "whose `update` changes them must not be declared @averages_as_given"
            )


def rows_of(cohort: Arena, clients: list[int]) -> Iterator[tuple[Tensor, int]]:
    """The row [size] of each client, where rows are kept."""
    kept = [] if isinstance(cohort, CohortSum) else clients
    return zip(cohort.data[: len(kept)], kept, strict=True)


def sums_suffice(cohort: int, lanes: int, device: torch.device) -> bool:
    """Whether a CohortSum takes less memory here, by an operator that gives the same bits."""
    if ranks.size() > 1 or device.type != "cpu" or cohort <= lanes + 1:
        return False
    row = torch.zeros(1, 1)
    return OPERATORS["weighted_sum_add"].choose(None, row[0], 1.0, row[0]) != "torch"


# A sum is made in blocks of so many columns, and between ranks only whole blocks are divided: then
# no column's sum is made otherwise than in one process.
BLOCK = 2048


def column_bounds(columns: int) -> list[tuple[int, int]]:
    """First and last column of each rank."""
    blocks = -(-columns // BLOCK)
    ends = [min(columns, BLOCK * (blocks * r // ranks.size())) for r in range(ranks.size() + 1)]
    return list(itertools.pairwise(ends))


def sum_by_columns(rows: Tensor, trainers: Sequence[int], weights: Tensor, out: Tensor) -> None:
    """ops.weighted_sum of `rows` [K, P] on all ranks, where rank `trainers[i]` alone has row i."""
    bounds, me = column_bounds(rows.shape[1]), ranks.rank()
    of_rank = [[i for i, t in enumerate(trainers) if t == r] for r in range(ranks.size())]
    first, end = bounds[me]
    mine = rows.new_empty(len(trainers), end - first)  # all rows, my columns
    taken = [rows.new_empty(len(own), end - first) for own in of_rank]
    ranks.swap([rows[of_rank[me], a:b] for a, b in bounds], taken)
    for own, part in zip(of_rank, taken, strict=True):
        mine[own] = part
    ops.weighted_sum(mine, weights, out[first:end])
    ranks.share(*((out[a:b], r) for r, (a, b) in enumerate(bounds)))


def columns_suffice(cohort: Arena) -> bool:
    """Whether rows are better summed by columns: where they are large, by an operator whose sum of
    a column does not depend on the others."""
    rows = cohort.data[:1]
    if ranks.size() == 1 or cohort.data.nbytes < LARGE:
        return False
    return OPERATORS["weighted_sum"].choose(None, rows, rows[0], rows[0]) != "torch"


LARGE = 8 << 20  # bytes of a cohort; below, the calls cost more than the traffic
