"""Stage 8: a cohort's rows become the next global model. Algorithms build on `average`.

Where ranks share a run and an algorithm only averages, whole rows need not travel: each rank gets
some columns of all rows, sums these in the order of the clients, and gives the sums to all. A rank
then receives about 2 P numbers, not K P.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from c2v_sim import ops
from c2v_sim.ops._dispatch import OPERATORS
from c2v_sim.system import ranks
from c2v_sim.training.arena import Arena


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
    if cohort.ranks is None:
        ops.weighted_sum(cohort.data[:k], weights, server.data[0])
    else:
        sum_by_columns(cohort.data[:k], cohort.ranks, weights, server.data[0])
    if server.integers.numel():
        server.integers[0] = cohort.integers[:k].amax(dim=0)


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
