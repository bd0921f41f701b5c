"""The federated algorithms, one per file, each reading like its formula."""

from collections.abc import Callable
from typing import Any

from c2v_sim.algorithms.clusters.cfl import Cfl
from c2v_sim.algorithms.clusters.ifca import Ifca
from c2v_sim.algorithms.fedavg import Algorithm
from c2v_sim.algorithms.fedavgm import FedAvgM
from c2v_sim.algorithms.fedbn import FedBN
from c2v_sim.algorithms.feddyn import FedDyn
from c2v_sim.algorithms.fediir import FedIIR
from c2v_sim.algorithms.fedlc import FedLC
from c2v_sim.algorithms.fednova import FedNova
from c2v_sim.algorithms.fedprox import FedProx
from c2v_sim.algorithms.moon import Moon
from c2v_sim.algorithms.personal.ditto import Ditto
from c2v_sim.algorithms.personal.fedproto import FedProto
from c2v_sim.algorithms.personal.fedrep import FedRep
from c2v_sim.algorithms.personal.fine_tuning import FineTuning
from c2v_sim.algorithms.personal.pfedme import PFedMe
from c2v_sim.algorithms.scaffold import Scaffold
from c2v_sim.algorithms.server_optimisers import ServerOptimiser

__all__ = ["ALGORITHMS", "Algorithm"]


def _server_optimiser(name: str) -> Callable[[Any], Algorithm]:
    return lambda settings: ServerOptimiser(
        name,
        settings.server_lr,
        settings.server_beta1,
        settings.server_beta2,
        settings.server_tau,
    )


# The settings are a run's (config/, a room above this one).
ALGORITHMS: dict[str, Callable[[Any], Algorithm]] = {
    "fedavg": lambda settings: Algorithm(),
    "fedavgm": lambda settings: FedAvgM(settings.server_momentum),
    "fedprox": lambda settings: FedProx(settings.fedprox_mu),
    "feddyn": lambda settings: FedDyn(settings.feddyn_alpha, settings.max_grad_norm),
    "moon": lambda settings: Moon(settings.moon_mu, settings.moon_temperature),
    "fedlc": lambda settings: FedLC(settings.fedlc_tau),
    "fediir": lambda settings: FedIIR(settings.fediir_penalty, settings.fediir_ema),
    "scaffold": lambda settings: Scaffold(),
    "fednova": lambda settings: FedNova(),
    "fedbn": lambda settings: FedBN(),
    "fedadagrad": _server_optimiser("fedadagrad"),
    "fedyogi": _server_optimiser("fedyogi"),
    "fedadam": _server_optimiser("fedadam"),
    "ifca": lambda settings: Ifca(settings.ifca_models, settings.seed),
    "fedrep": lambda settings: FedRep(settings.fedrep_head),
    "ditto": lambda settings: Ditto(settings.ditto_lambda),
    "pfedme": lambda settings: PFedMe(
        settings.pfedme_lambda, settings.pfedme_steps, settings.pfedme_eta, settings.pfedme_beta
    ),
    "fedproto": lambda settings: FedProto(settings.fedproto_lambda),
    "fine-tuning": lambda settings: FineTuning(settings.tuning_epochs),
    "cfl": lambda settings: Cfl(
        settings.cfl_clusters, settings.cfl_ratio, settings.cfl_sketch, settings.seed
    ),
}
