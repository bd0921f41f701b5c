"""The configuration of a run: one frozen dataclass that reproduces it.

Values come from a preset, then a TOML file, then flags; each later one wins. Every field of
RunConfig is a key of the TOML file and a flag of the same name (`local_epochs` is
`--local-epochs`). Defaults are the specification's; the presets change them. The settings of the
client index are those of IndexConfig, here as `index_<name>`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from c2v_sim.algorithms import ALGORITHMS
from c2v_sim.algorithms.local_regulariser import DIRECTIONS
from c2v_sim.data.dirichlet import LDA
from c2v_sim.data.load import DATASETS
from c2v_sim.data.partition import PARTITIONERS
from c2v_sim.index import config as index_config
from c2v_sim.index.config import IMPROVEMENTS, IndexConfig, field_in_run, of_machine
from c2v_sim.index.naive import WITHOUT_FEATURE
from c2v_sim.models import MODELS, NORMED_MODELS, NORMS
from c2v_sim.ops.projection_orthogonality import FORMS
from c2v_sim.system import settings
from c2v_sim.system.errors import ConfigError, naming
from c2v_sim.system.machine import DEVICES
from c2v_sim.system.parse import read_toml, to_toml
from c2v_sim.system.settings import PAPER, POSITIVE, REPORT, Affects, Section
from c2v_sim.training.sampling import SAMPLERS

__all__ = ["FIELDS", "RunConfig", "index_settings", "make_config"]
__all__ += ["read_toml", "saved_config", "to_toml"]

RESULT, BITS, PLACE, DATA, CLIENTS, INDEX, PACE, WORK, MEMORY, LENGTH = Affects
AUGMENTATIONS = ("none", "crop-flip")
# local-model-weights changes while the run trains and serves `improve = local` alone.
INDICES = (*index_config.KINDS, "local-model-weights")
INDEX_PARTS = ("both", "feature", "label")
STATE_DTYPES = ("float32", "bfloat16")
WEIGHT_RULES = ("one", "caption", "appendix")
OF_BOTH = -1.0  # the weight of one local term, where it is that of both

of_data = Section("data", DATA)
of_text = of_data.needing(dataset=[name for name, source in DATASETS.items() if source.text])
of_clients = Section("clients", RESULT | CLIENTS)
of_dirichlet = of_clients.needing(partition="dirichlet")
of_shards, of_domains = (of_clients.needing(partition=name) for name in ("shards", "by-domain"))
of_model = Section("model", RESULT)
of_norm = of_model.needing(model=NORMED_MODELS)
of_training = Section("training", RESULT)
of_images = of_training.needing(dataset=[name for name in DATASETS if not DATASETS[name].text])
of_algorithm = Section("what some algorithms have of their own", RESULT)
of_fedavgm, of_fedprox, of_feddyn, of_moon, of_fedlc, of_fediir = (
    of_algorithm.needing(algorithm=name)
    for name in ("fedavgm", "fedprox", "feddyn", "moon", "fedlc", "fediir")
)
of_improvement = Section("improvements by a client index", RESULT)
of_sampling, of_aggregation, of_local = (of_improvement.needing(improve=n) for n in IMPROVEMENTS)
of_steering = of_improvement.needing(improve=("sampling", "aggregation"))
of_index = Section(index_config.of_index.title, RESULT | INDEX).needing(improve=IMPROVEMENTS)


@dataclass(frozen=True)
@index_config.with_index_settings
class RunConfig:
    """One federated run."""

    dataset: str = of_data("shapes", "data set", RESULT | PACE, DATASETS, common=True, told=PAPER)
    data_dir: str = of_data("", "folder of data files; empty: the user's cache folder", PLACE)
    require_real_data: bool = of_data(False, "refuse a stand-in for data that is not there", PLACE)
    train_size: int = of_data(
        0, "training images of `shapes` (0: 50,000)", RESULT | PACE, least=0, told=PAPER
    )
    test_size: int = of_data(
        0, "test images of `shapes` (0: 10,000)", RESULT | WORK, least=0, told=PAPER
    )
    sample_fraction: float = of_text(
        0.1, "share of the samples that is used", RESULT | PACE, above=0.0, most=1.0
    )
    min_samples: int = of_text(40, "fewest samples of a client", RESULT | WORK, least=0)
    train_fraction: float = of_text(
        0.8, "share of a client's samples that trains", RESULT | WORK, above=0.0, below=1.0
    )

    clients: int = of_clients(
        100, "how many; 0: those of the data", PACE | MEMORY, least=0, common=True, told=PAPER
    )
    partition: str = of_clients(
        "dirichlet", "how samples are dealt to clients", PACE, PARTITIONERS, common=True
    )
    alpha: float = of_dirichlet(
        0.1, "Dirichlet concentration; small: few classes", common=True, **POSITIVE
    )
    lda: str = of_dirichlet("per_client", "Dirichlet convention", choices=LDA)
    shards_per_client: int = of_shards(2, "label shards per client", least=1)
    clients_per_domain: int = of_domains(0, "0: from clients", PACE | MEMORY, least=0, told=PAPER)

    model: str = of_model("cnn", "client model", PACE | MEMORY, MODELS, common=True, told=PAPER)
    norm: str = of_norm(
        "batch", "normalisation of the residual networks and mobilenetv2", PACE | MEMORY, NORMS
    )
    pretrained: str = of_model(
        "", "state-dict file (.pth, .safetensors) that the model starts from", told=PAPER
    )
    algorithm: str = of_training(
        "fedavg", "federated algorithm", PACE | MEMORY, ALGORITHMS, common=True
    )
    rounds: int = of_training(100, "communication rounds", MEMORY | LENGTH, least=1, common=True)
    participation: float = of_training(
        0.1, "share of the clients in a round", PACE | MEMORY, above=0.0, most=1.0, common=True
    )
    local_epochs: int = of_training(5, "epochs per client and round", WORK, least=1, common=True)
    batch_size: int = of_training(128, "samples per step", PACE | MEMORY, least=1, common=True)
    lr: float = of_training(0.01, "learning rate of local SGD", common=True, **POSITIVE)
    momentum: float = of_training(0.0, "momentum of local SGD", least=0.0, below=1.0)
    weight_decay: float = of_training(5e-5, "weight decay of local SGD", least=0.0)
    augment: str = of_images(
        "none", "training-image augmentation, on the device", PACE, AUGMENTATIONS
    )

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

    sampling: str = of_training(
        "uniform", "who takes part, where no index decides", choices=SAMPLERS
    )
    improve: tuple[str, ...] = of_improvement(
        (), "what the client index improves, or none", MEMORY, IMPROVEMENTS, common=True
    )
    index: str = field_in_run(
        "index", PACE | MEMORY, help="client index that they use", choices=INDICES, common=True
    )
    # What was in the file is in the manifest, where the report finds it.
    index_file: str = of_index("", "a saved index, instead of building one", told=REPORT)
    index_strategy: str = field_in_run("strategy")  # the rest of IndexConfig follows by itself
    index_part: str = of_index("both", "part of the index that is used", choices=INDEX_PARTS)
    index_shuffled: bool = of_steering(False, "a control: the index's vectors change their owners")
    tau: float = of_sampling(0.0, "temperature; 0: 1 (global) or 0.1 (federated)", least=0.0)
    gamma: float = of_aggregation(0.5, "discount of past similarity", least=0.0, most=1.0)
    lambda1: float = of_aggregation(
        1.0, "pull of the weights to the sizes; inf: the sizes", above=0.0
    )
    local_weight: float = of_local(0.0, "w_r of the local loss; 0: by local_weight_rule", least=0.0)
    local_weight_rule: str = of_local(
        "one", "1; or as the paper's caption: 5 (global), 1; or its appendix", choices=WEIGHT_RULES
    )
    local_orth: str = of_local("unit", "form of L_orth", choices=FORMS, before="cosine")
    local_orth_weight: float = of_local(OF_BOTH, "weight of L_orth; -1: w_r", least=OF_BOTH)
    local_dist_weight: float = of_local(OF_BOTH, "weight of L_dist; -1: w_r", least=OF_BOTH)
    dist_direction: str = of_local("forward", "of the KL in L_dist", choices=DIRECTIONS)
    omit_local_orth: bool = of_local(False, "leave L_orth out of the local loss")
    dist_detach: bool = of_local(False, "no gradient from L_dist into the model's own logits")

    state_dtype: str = of_machine(
        "float32", "how clients' state is stored", RESULT | PACE | MEMORY, STATE_DTYPES
    )
    state_memory: float = of_machine(
        0.0, "GB for clients' state; 0: half of what is free", PLACE | MEMORY, least=0.0, most=1e9
    )
    seed: int = of_machine(0, "of all that is drawn", BITS | CLIENTS, common=True, **settings.SEEDS)
    lanes: int = of_machine(
        0,
        "clients trained at once; 0 or auto: as fits",
        PLACE | WORK | MEMORY,
        least=0,
        auto=True,
        common=True,
    )
    device: str = of_machine("auto", "where to train", BITS | PLACE | PACE, DEVICES)
    deterministic: bool = of_machine(
        True, "only operators that give the same bits every time", RESULT | PACE, told=PAPER
    )
    eval_every: int = of_training(
        1, "rounds between evaluations; the last is always one", WORK, least=1
    )
    checkpoint_every: int = of_machine(5, "rounds between checkpoints", PLACE, least=1)

    def __post_init__(self) -> None:
        settings.check_all(self)
        if self.clients == 0 and self.partition != "natural":
            raise ConfigError(
                f"clients must be at least 1 with partition = {self.partition}, got 0"
            )
        if (self.train_size or self.test_size) and self.dataset != "shapes":
            raise ConfigError(f"train_size and test_size are for shapes, not {self.dataset}")
        self._check_index()

    def _check_index(self) -> None:
        """Refuse an index that cannot serve what it is to improve."""
        if "sampling" in self.improve and self.sampling != "uniform":
            raise ConfigError(
                f"sampling = {self.sampling} has no effect with improve = sampling: the index "
                "decides who takes part"
            )
        steered = [name for name in self.improve if name != "local"]
        if self.index == "local-model-weights" and steered:
            raise ConfigError(
                f"improve = {', '.join(steered)} needs an index from before training; "
                "local-model-weights serves improve = local alone"
            )
        if self.index == "local-model-weights" and self.index_file:
            raise ConfigError("index = local-model-weights takes no index_file")
        if "local" in self.improve and self.index in WITHOUT_FEATURE:
            raise ConfigError(f"improve = local: index = {self.index} has no feature part for it")
        if self.index_part == "label" and ("local" in self.improve or self.index != "dsa-ign"):
            raise ConfigError(
                "index_part = label goes with index = dsa-ign and without improve = local, which "
                "needs the feature part"
            )

    @property
    def needs_client_index(self) -> bool:
        """Whether an index must be there before the first round."""
        return bool(self.improve) and self.index != "local-model-weights"

    @property
    def temperature(self) -> float:
        """tau of similarity-steered sampling."""
        return self.tau or (0.1 if self.index_strategy == "federated" else 1.0)

    @property
    def regulariser_weight(self) -> float:
        """w_r of the local loss."""
        if self.local_weight:
            return self.local_weight
        if self.local_weight_rule == "appendix":
            own = {"moon": self.moon_mu, "feddyn": self.feddyn_alpha}
            own["fediir"] = self.fediir_penalty
            return own.get(self.algorithm, 1.0)
        in_caption = self.local_weight_rule == "caption" and self.index_strategy == "global"
        return 5.0 if in_caption else 1.0

    @property
    def local_weights(self) -> tuple[float, float]:
        """Of L_orth and of L_dist."""
        given = (self.local_orth_weight, self.local_dist_weight)
        orth, dist = (self.regulariser_weight if w < 0.0 else w for w in given)
        return (0.0 if self.omit_local_orth else orth), dist


FIELDS = settings.facts_of(RunConfig)
# What a saved run does not say, because the setting did not exist yet.
OF_OLDER_RUNS = {name: s.before for name, s in FIELDS.items() if s.before is not None}


def index_settings(config: RunConfig) -> IndexConfig:
    """The index that a run needs."""
    names = {name: index_config.name_in_run(name) for name in settings.facts_of(IndexConfig)}
    return IndexConfig(**{name: getattr(config, in_run) for name, in_run in names.items()})


def make_config(
    given: Mapping[str, object],
    base: RunConfig | None = None,
    flags: Collection[str] = (),
    shared: Collection[str] = (),
) -> RunConfig:
    """`base` with the user's settings on top; unknown, wrong or contradictory ones are refused.

    `flags` are the settings typed by hand: one without effect is refused even at its default
    value, while a file that lists every field may hold such defaults. `shared` are those that
    other runs need as well: one without effect here goes back to its default, as do the preset's
    own, or the saved configuration would be refused later.
    """
    base = base or RunConfig()
    config = settings.overlay(base, _as_the_data_comes(given, base))
    if "clients" in flags and config.clients_per_domain:
        raise ConfigError(
            f"clients = {config.clients} has no effect with clients_per_domain = "
            f"{config.clients_per_domain}: leave one of them out"
        )
    return settings.without_idle(config, given, flags, shared)


def _as_the_data_comes(given: Mapping[str, object], base: RunConfig) -> Mapping[str, object]:
    """Data with its own clients is dealt to them, as many as there are, and text is read by a
    model for text, unless told otherwise."""
    dataset = given.get("dataset", base.dataset)
    source = DATASETS.get(str(dataset))  # an unknown one is refused later, by name
    if source is not None and dataset != base.dataset:
        own = {"partition": "natural" if source.own_clients else None, "model": source.model}
        given = {**{name: value for name, value in own.items() if value}, **given}
    if given.get("partition", base.partition) == "natural" != base.partition:
        given = {"clients": 0, **given}
    return given


def saved_config(path: Path) -> RunConfig:
    """The configuration of a run; what had no effect, and was once accepted, is the default."""
    with naming(path):
        return make_config(OF_OLDER_RUNS | read_toml(path), shared=FIELDS)
