"""aggregation_weights: how much each client of the cohort counts.

    p = softmax( log q + H / lambda1 ),  q = N / sum N        history H [k], sizes N [k] -> p [k]

the closed form that maximises  sum_i p_i H_i - lambda1 KL(p || q). Pure torch: k is the cohort,
a handful of numbers per round, far below what a kernel launch costs.
"""

import math

import torch
from torch import Tensor


def aggregation_weights(history: Tensor, sizes: Tensor, lambda1: float) -> Tensor:  # [k], [k]
    """The weights p [k] in float64, on the device of `history`; they sum to 1.

    Stable for every lambda1 > 0: a tiny one gives the client with the largest history (equals
    share by size), math.inf gives q itself. A client of size 0 has weight 0. NaN in `history` or
    negative `sizes` make all weights NaN.
    """
    if history.dim() != 1 or len(history) == 0 or sizes.shape != history.shape:
        raise ValueError(
            "aggregation_weights: history and sizes must both be [k] with k >= 1, got "
            f"{tuple(history.shape)} and {tuple(sizes.shape)}"
        )
    if not lambda1 > 0:
        raise ValueError(f"aggregation_weights: lambda1 must be > 0, got {lambda1}")
    counts = sizes.to(device=history.device, dtype=torch.float64)
    h = history.to(torch.float64)
    if math.isinf(lambda1):
        # log and exp would return q only up to rounding; 0 * h keeps a NaN visible.
        return counts / counts.sum() + 0 * h
    present = torch.where(counts == 0, float("-inf"), h)  # an empty client is no maximum
    # The maximum goes first: H / lambda1 alone overflows for a tiny lambda1.
    below = (present - present.max()) / lambda1
    return (counts.log() + below).softmax(dim=0)
