"""Stage 8: a cohort's models become the next global model.

An algorithm maps the trained rows to the global row. `weights` are the cohort's q_i = N_i / N.
"""

import numpy as np
import torch
from torch import Tensor

from c2v_sim import ops
from c2v_sim.arena import Arena


def data_shares(sizes: np.ndarray) -> Tensor:
    """q_i = N_i / sum N over the cohort, [K] float32."""
    return torch.from_numpy(sizes / sizes.sum()).float()


def fedavg(server: Arena, cohort: Arena, weights: Tensor) -> None:
    """w = sum_i p_i w_i over the first K rows; batch-norm statistics lie in the row and follow.

    num_batches_tracked, a count, takes the cohort's largest value.
    """
    k = len(weights)
    ops.weighted_sum(cohort.data[:k], weights.to(server.data.device), server.data[0])
    if server.integers.numel():
        server.integers[0] = cohort.integers[:k].amax(dim=0)


ALGORITHMS = {"fedavg": fedavg}
