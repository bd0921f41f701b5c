"""The federated algorithms, one per file, each reading like its formula."""

from collections.abc import Callable
from typing import Protocol

from c2v_sim.algorithms.fedavg import Algorithm
from c2v_sim.algorithms.fedavgm import FedAvgM
from c2v_sim.algorithms.feddyn import FedDyn
from c2v_sim.algorithms.fediir import FedIIR
from c2v_sim.algorithms.fedlc import FedLC
from c2v_sim.algorithms.fedprox import FedProx
from c2v_sim.algorithms.moon import Moon

__all__ = ["ALGORITHMS", "Algorithm", "AlgorithmSettings"]


class AlgorithmSettings(Protocol):
    """What the algorithms read of a run's settings."""

    @property
    def server_momentum(self) -> float: ...
    @property
    def fedprox_mu(self) -> float: ...
    @property
    def feddyn_alpha(self) -> float: ...
    @property
    def max_grad_norm(self) -> float: ...
    @property
    def moon_mu(self) -> float: ...
    @property
    def moon_temperature(self) -> float: ...
    @property
    def fedlc_tau(self) -> float: ...
    @property
    def fediir_penalty(self) -> float: ...
    @property
    def fediir_ema(self) -> float: ...


ALGORITHMS: dict[str, Callable[[AlgorithmSettings], Algorithm]] = {
    "fedavg": lambda settings: Algorithm(),
    "fedavgm": lambda settings: FedAvgM(settings.server_momentum),
    "fedprox": lambda settings: FedProx(settings.fedprox_mu),
    "feddyn": lambda settings: FedDyn(settings.feddyn_alpha, settings.max_grad_norm),
    "moon": lambda settings: Moon(settings.moon_mu, settings.moon_temperature),
    "fedlc": lambda settings: FedLC(settings.fedlc_tau),
    "fediir": lambda settings: FedIIR(settings.fediir_penalty, settings.fediir_ema),
}
