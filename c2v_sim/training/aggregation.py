"""Stage 8: a cohort's rows become the next global model. Algorithms build on `average`."""

import torch
from torch import Tensor

from c2v_sim import ops
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
    ops.weighted_sum(cohort.data[:k], weights, server.data[0])
    if server.integers.numel():
        server.integers[0] = cohort.integers[:k].amax(dim=0)
