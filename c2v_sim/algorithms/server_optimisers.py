"""FedAdagrad, FedYogi and FedAdam: an adaptive optimiser on the server (Reddi et al., 2021).

    Delta = sum_i p_i w_i - w,   m = beta1 m + (1 - beta1) Delta          m = 0 in the beginning
    FedAdagrad   v = v + Delta^2                                          v = tau^2 in the beginning
    FedYogi      v = v - (1 - beta2) Delta^2 sign(v - Delta^2)
    FedAdam      v = beta2 v + (1 - beta2) Delta^2
    w = w + lr m / (sqrt(v) + tau)

element by element, without correction of a bias. Batch-norm statistics are the cohort's average.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from c2v_sim.algorithms.fedavg import Algorithm, averages_as_given
from c2v_sim.algorithms.run_parts import RunParts
from c2v_sim.training.aggregation import average
from c2v_sim.training.arena import Arena


def adagrad(v: Tensor, square: Tensor, beta2: float) -> Tensor:
    return v + square


def yogi(v: Tensor, square: Tensor, beta2: float) -> Tensor:
    return v - (1 - beta2) * square * (v - square).sign()


def adam(v: Tensor, square: Tensor, beta2: float) -> Tensor:
    return beta2 * v + (1 - beta2) * square


SECOND_MOMENTS: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "fedadagrad": adagrad,
    "fedyogi": yogi,
    "fedadam": adam,
}


@dataclass
class ServerOptimiser(Algorithm):
    name: str = "fedadam"  # one of SECOND_MOMENTS
    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def start(self, run: RunParts) -> None:
        self.m = run.server_state("m", run.layout.trainable)
        self.v = run.server_state("v", run.layout.trainable).fill_(self.tau**2)

    @averages_as_given
    def update(self, server: Arena, cohort: Arena, weights: Tensor) -> None:
        parameters = server.data[0, : len(self.m)]
        before = parameters.clone()
        average(server, cohort, weights)
        delta = parameters - before
        self.m.mul_(self.beta1).add_(delta, alpha=1 - self.beta1)
        self.v.copy_(SECOND_MOMENTS[self.name](self.v, delta.square(), self.beta2))
        parameters.copy_(before + self.lr * self.m / (self.v.sqrt() + self.tau))
