"""Case studies i and ii: the client index steers who trains and how much each counts.

    omega_j = N_j / N on the cohort,  s = A omega,  H <- gamma H + s                  all [M]
    i   p_i ∝ exp(s_i / tau) over clients that have rested, s of the round before
    ii  p_i = softmax_i( log prior_i + H_i / lambda1 ) over the cohort

A client rests floor(M / 2k) rounds. A is never formed (ops.client_scores). The state `last`, `H`
and `scores` changes only when a round is finished.
"""

from collections.abc import Collection

import numpy as np
import torch
from torch import Tensor

from c2v_sim import ops
from c2v_sim.system.seeding import SAMPLING, rng

NEVER = -(2**62)  # `last` of a client that has not taken part


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
        self.rest = clients // (2 * cohort_size)  # rounds
        self.last = torch.full((clients,), NEVER, dtype=torch.int64)
        self.history = torch.zeros(clients, dtype=torch.float64)  # H
        self.scores = torch.zeros(clients, dtype=torch.float64)  # s of the last round

    def cohort(self, round: int) -> np.ndarray:
        """Case study i: k ascending ids for `round`; the scores of the first round are zeros."""
        waited = round - self.last
        cohort = ops.sample_cohort(
            self.scores,
            self.k,
            self.tau,
            rng=rng(self.seed, SAMPLING, round),
            eligible=waited > self.rest,
            rest=waited,
        )
        return cohort.numpy()

    def look(self, clients: np.ndarray) -> tuple[Tensor, Tensor]:
        """s and H with `clients` as this round's cohort, both float64 [M] on the CPU."""
        scores = ops.client_scores(self.feature, self.label, clients, self.sizes).cpu().double()
        return scores, self.gamma * self.history + scores

    def weights(self, clients: np.ndarray, history: Tensor, prior: Tensor) -> Tensor:  # [k]
        """Case study ii: the cohort's weights p in float64."""
        return ops.aggregation_weights(history[torch.from_numpy(clients)], prior, self.lambda1)

    def finish(self, round: int, clients: np.ndarray, scores: Tensor, history: Tensor) -> None:
        """The round is done."""
        self.scores.copy_(scores)
        self.history.copy_(history)
        self.last[torch.from_numpy(clients)] = round

    def state(self) -> dict[str, Tensor]:
        return {"last": self.last, "H": self.history, "scores": self.scores}
