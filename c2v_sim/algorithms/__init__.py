"""The federated algorithms, one a file, each reading like its formula."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from c2v_sim.algorithms.fedavg import Algorithm
from c2v_sim.algorithms.fedavgm import FedAvgM
from c2v_sim.algorithms.feddyn import FedDyn
from c2v_sim.algorithms.fediir import FedIIR
from c2v_sim.algorithms.fedlc import FedLC
from c2v_sim.algorithms.fedprox import FedProx
from c2v_sim.algorithms.moon import Moon

if TYPE_CHECKING:
    from c2v_sim.config import RunConfig

__all__ = ["ALGORITHMS", "Algorithm"]

ALGORITHMS: dict[str, Callable[["RunConfig"], Algorithm]] = {
    "fedavg": lambda config: Algorithm(),
    "fedavgm": lambda config: FedAvgM(config.server_momentum),
    "fedprox": lambda config: FedProx(config.fedprox_mu),
    "feddyn": lambda config: FedDyn(config.feddyn_alpha, config.max_grad_norm),
    "moon": lambda config: Moon(config.moon_mu, config.moon_temperature),
    "fedlc": lambda config: FedLC(config.fedlc_tau),
    "fediir": lambda config: FedIIR(config.fediir_penalty, config.fediir_ema),
}
