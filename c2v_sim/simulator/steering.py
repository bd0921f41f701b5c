"""Case studies i and ii: the client index steers who trains and how much each counts.

    omega_j = N_j / N on the cohort,  s = A omega,  H <- gamma H + s                  all [M]
    i   p_i ∝ exp(s_i / tau) over clients that have rested, s of the round before
    ii  p_i = softmax_i( log prior_i + H_i / lambda1 ) over the cohort

A client rests floor(M / 2k) rounds. A is never formed (ops.client_scores). The state `last`, `H`
and `scores` changes only when a round is finished.

All of the index is read once a round. With `steering_dtype = bfloat16` that is half as much: its
numbers are rounded to the nearest bfloat16, once and before the first round; A is that of the
rounded vectors, and products are added in float32 as before. The saved index stays what it is.
"""

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from c2v_sim import ops
from c2v_sim.config import RunConfig
from c2v_sim.index.client_index import ClientIndex
from c2v_sim.system.seeding import SAMPLING, rng
from c2v_sim.training.sampling import rest_rounds, who_may

NEVER = -(2**62)  # `last` of a client that has not taken part


class Similarity(NamedTuple):
    """Of all clients to the cohorts, float64 [M] on the CPU."""

    scores: Tensor  # s, to this round's cohort
    history: Tensor  # H, to this one and those before


class Steering:
    """`improve`: "sampling", "aggregation" or both."""

    def __init__(
        self,
        feature: Tensor,  # [M, D]
        label: Tensor | None,  # [M, D']; None: the score is the one cosine of `feature`
        sizes: np.ndarray,  # [M]
        cohort_size: int,
        improve: Collection[str],
        *,
        seed: int,
        tau: float,
        gamma: float,
        lambda1: float,
    ) -> None:
        self.feature, self.label, self.sizes, self.k = feature, label, sizes, cohort_size
        self.improve = frozenset(improve)
        self.seed, self.tau, self.gamma, self.lambda1 = seed, tau, gamma, lambda1
        clients = len(sizes)
        self.rest = rest_rounds(clients, cohort_size)
        self.last = torch.full((clients,), NEVER, dtype=torch.int64)
        self.history = torch.zeros(clients, dtype=torch.float64)  # H
        self.scores = torch.zeros(clients, dtype=torch.float64)  # s of the last round

    def cohort(self, t: int) -> np.ndarray:
        """Case study i: k ascending ids for round `t`; the scores of the first are zeros."""
        cohort = ops.sample_cohort(
            self.scores,
            self.k,
            self.tau,
            rng=rng(self.seed, SAMPLING, t),
            **who_may(self.last.numpy(), t, self.rest, self.k),
        )
        return cohort.numpy()

    def similarity_to(self, clients: np.ndarray) -> Similarity:
        """s and H with `clients` as this round's cohort."""
        scores = ops.client_scores(self.feature, self.label, clients, self.sizes).cpu().double()
        return Similarity(scores, self.gamma * self.history + scores)

    def weights(self, clients: np.ndarray, history: Tensor, prior: Tensor) -> Tensor:  # [k]
        """Case study ii: the cohort's weights p in float64."""
        return ops.aggregation_weights(history[torch.from_numpy(clients)], prior, self.lambda1)

    def finish(self, t: int, clients: np.ndarray, scores: Tensor, history: Tensor) -> None:
        """Round `t` is done."""
        self.scores, self.history = scores, history
        self.last[torch.from_numpy(clients)] = t

    def state(self) -> dict[str, Tensor]:
        return {"last": self.last, "H": self.history, "scores": self.scores}


def build_steering(
    config: RunConfig, index: ClientIndex, sizes: np.ndarray, cohort_size: int, device: torch.device
) -> Steering | None:
    """What the config lets `index` steer; None where that is nothing."""
    steered = {"sampling", "aggregation"} & set(config.improve)
    if not steered:
        return None
    parts = [getattr(index, name).to(device) for name in index.parts]
    if config.steering_dtype == "bfloat16":
        parts = [part.to(torch.bfloat16) for part in parts]
    feature, label = parts if len(parts) == 2 else (parts[0], None)
    return Steering(
        feature,
        label,
        sizes,
        cohort_size,
        steered,
        seed=config.seed,
        tau=config.temperature,
        gamma=config.gamma,
        lambda1=config.lambda1,
    )


def used_index(config: RunConfig, index: ClientIndex) -> ClientIndex:
    """What the config lets be used of `index`: all of it, one part, or a control."""
    index = index.shuffled(config.seed) if config.index_shuffled else index
    return index if config.index_part == "both" else index.only(config.index_part)
