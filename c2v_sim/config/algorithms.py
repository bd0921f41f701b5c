"""Settings that some algorithms have of their own."""

from dataclasses import dataclass

from c2v_sim.system.settings import POSITIVE, Affects, Section

RESULT, BITS, PLACE, DATA, CLIENTS, INDEX, PACE, WORK, MEMORY, LENGTH = Affects

of_algorithm = Section("what some algorithms have of their own", Affects.RESULT)
of_fedavgm, of_fedprox, of_feddyn, of_moon, of_fedlc, of_fediir, of_ifca, of_cfl = (
    of_algorithm.needing(algorithm=name)
    for name in ("fedavgm", "fedprox", "feddyn", "moon", "fedlc", "fediir", "ifca", "cfl")
)
ADAPTIVE = ("fedadagrad", "fedyogi", "fedadam")
of_adaptive = of_algorithm.needing(algorithm=ADAPTIVE)
of_fedrep, of_ditto, of_tuning, of_pfedme, of_fedproto = (
    of_algorithm.needing(algorithm=name)
    for name in ("fedrep", "ditto", "fine-tuning", "pfedme", "fedproto")
)
of_second_moment = of_algorithm.needing(algorithm=ADAPTIVE[1:])


@dataclass(frozen=True)
class AlgorithmSettings:
    """By algorithm."""

    server_momentum: float = of_fedavgm(0.1, "b, of the server", least=0.0)
    fedprox_mu: float = of_fedprox(0.01, "mu of the proximal term", least=0.0)
    feddyn_alpha: float = of_feddyn(0.1, "a of the regulariser", least=0.0)
    max_grad_norm: float = of_feddyn(10.0, "clipping of the gradient's norm", least=0.0)
    moon_mu: float = of_moon(0.1, "mu of the contrast", least=0.0)
    moon_temperature: float = of_moon(0.5, "temperature of the contrast", above=0.0)
    fedlc_tau: float = of_fedlc(1.0, "tau of the calibration", least=0.0)
    fediir_penalty: float = of_fediir(1e-3, "weight of the penalty", least=0.0)
    fediir_ema: float = of_fediir(
        0.95, "share of the old mean gradient that is kept", least=0.0, most=1.0
    )
    server_lr: float = of_adaptive(0.01, "learning rate of the server's optimiser", **POSITIVE)
    server_beta1: float = of_adaptive(
        0.9, "beta1 of the server's optimiser (the paper's fedadagrad: 0)", least=0.0, below=1.0
    )
    server_beta2: float = of_second_moment(
        0.99, "beta2 of the server's optimiser", least=0.0, below=1.0
    )
    server_tau: float = of_adaptive(1e-3, "tau, how adaptive the server is", above=0.0, most=1e6)
    ifca_models: int = of_ifca(4, "models among which clients choose", MEMORY | WORK, least=1)
    cfl_clusters: int = of_cfl(10, "the most clusters", MEMORY, least=1)
    cfl_ratio: float = of_cfl(
        0.25, "a cluster is divided where its mean update is shorter, by its longest", least=0.0
    )
    cfl_sketch: int = of_cfl(0, "numbers kept of an update; 0: the whole", MEMORY, least=0)
    fedrep_head: float = of_fedrep(
        0.8, "share of a client's steps, the first, that train the classifier", least=0.0, most=1.0
    )
    ditto_lambda: float = of_ditto(0.1, "pull of a client's own model to the global", least=0.0)
    pfedme_lambda: float = of_pfedme(
        15.0, "pull of a client's own model to its copy of the global", above=0.0
    )
    pfedme_steps: int = of_pfedme(5, "K, steps of a client's own model on a batch", WORK, least=1)
    pfedme_eta: float = of_pfedme(0.005, "eta, rate of the copy of the global model", least=0.0)
    pfedme_beta: float = of_pfedme(1.0, "share of the cohort's mean in the global model", above=0.0)
    fedproto_lambda: float = of_fedproto(
        1.0, "pull of features to the mean features of their class", least=0.0
    )
    tuning_epochs: int = of_tuning(1, "epochs of a client before it is tested", WORK, least=1)
