"""The configuration of a run: one frozen dataclass that reproduces it.

Values come from a preset, then a TOML file, then flags; each later one wins. Every field of
RunConfig is a key of the TOML file and a flag of the same name (`local_epochs` is
`--local-epochs`). Defaults are the specification's; the presets change them.
"""

import dataclasses
import difflib
import math
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w

from c2v_sim.algorithms import ALGORITHMS
from c2v_sim.data.dirichlet import LDA
from c2v_sim.data.load import DATASETS, OWN_CLIENTS
from c2v_sim.data.partition import PARTITIONERS
from c2v_sim.index.dsa_ign import DECODERS, LOSSES
from c2v_sim.index.encoders import ENCODERS
from c2v_sim.index.naive import NAIVE
from c2v_sim.models import MODELS, NORMED_MODELS, NORMS
from c2v_sim.system.errors import ConfigError
from c2v_sim.training.sampling import SAMPLERS

PRESETS = ("quick", "paper")
AUGMENTATIONS = ("none", "crop-flip")
DEVICES = ("auto", "cpu", "cuda")
# local-model-weights changes while the run trains and serves `improve = local` alone.
INDICES = ("dsa-ign", *NAIVE, "local-model-weights")
STRATEGIES = ("global", "federated")
INDEX_PARTS = ("both", "feature", "label")
STATE_DTYPES = ("float32", "bfloat16")
WEIGHT_RULES = ("caption", "appendix")
IMPROVEMENTS = ("sampling", "aggregation", "local")
# Settings that change where and how fast a run goes, not its result: a resume may change them.
FREE_ON_RESUME = {"lanes", "data_dir", "require_real_data", "checkpoint_every", "state_memory"}


def option(default: Any, text: str, choices: tuple[str, ...] | None = None, least: Any = None):
    """A field with what the command line and the checks need: help, allowed values, minimum."""
    return field(default=default, metadata={"help": text, "choices": choices, "least": least})


@dataclass(frozen=True)
class RunConfig:
    """One federated run."""

    dataset: str = option("shapes", "data set", tuple(DATASETS))
    data_dir: str = option("", "folder with (or for) data files; empty: the user's cache folder")
    require_real_data: bool = option(False, "refuse a stand-in for data that is not there")
    train_size: int = option(0, "training images of `shapes` (0: 50,000)", least=0)
    test_size: int = option(0, "test images of `shapes` (0: 10,000)", least=0)
    sample_fraction: float = option(0.1, "share of the samples that is used (shakespeare)")
    min_samples: int = option(40, "fewest samples of a client (shakespeare)", least=0)
    train_fraction: float = option(0.8, "share of a client's samples that trains (shakespeare)")

    clients: int = option(100, "number of clients; 0: as many as the data has (natural)", least=0)
    partition: str = option("dirichlet", "how samples are dealt to clients", tuple(PARTITIONERS))
    alpha: float = option(0.1, "Dirichlet concentration; small: few classes a client")
    lda: str = option("per_client", "Dirichlet convention", tuple(LDA))
    shards_per_client: int = option(2, "label shards a client gets (shards)", least=1)
    clients_per_domain: int = option(0, "clients a domain (by-domain); 0: from clients", least=0)

    model: str = option("cnn", "client model", tuple(MODELS))
    norm: str = option(
        "batch", "normalisation of the residual networks and mobilenetv2", tuple(NORMS)
    )
    pretrained: str = option("", "state-dict file (.pth, .safetensors) that the model starts from")
    algorithm: str = option("fedavg", "federated algorithm", tuple(ALGORITHMS))
    rounds: int = option(100, "communication rounds", least=1)
    participation: float = option(0.1, "share of the clients in a round's cohort")
    local_epochs: int = option(5, "epochs a client trains", least=1)
    batch_size: int = option(128, "samples a local step", least=1)
    lr: float = option(0.01, "learning rate of local SGD")
    momentum: float = option(0.0, "momentum of local SGD", least=0.0)
    weight_decay: float = option(5e-5, "weight decay of local SGD", least=0.0)
    augment: str = option("none", "training-image augmentation, on the device", AUGMENTATIONS)

    server_momentum: float = option(0.1, "b of fedavgm", least=0.0)
    fedprox_mu: float = option(0.01, "mu of fedprox", least=0.0)
    feddyn_alpha: float = option(0.1, "a of feddyn", least=0.0)
    max_grad_norm: float = option(10.0, "clipping of the gradient's norm (feddyn)", least=0.0)
    moon_mu: float = option(0.1, "mu of moon", least=0.0)
    moon_temperature: float = option(0.5, "temperature of moon's contrast")
    fedlc_tau: float = option(1.0, "tau of fedlc", least=0.0)
    fediir_penalty: float = option(1e-3, "weight of fediir's penalty", least=0.0)
    fediir_ema: float = option(0.95, "share of the old mean gradient that fediir keeps", least=0.0)

    sampling: str = option("uniform", "who takes part, where no index decides", tuple(SAMPLERS))
    improve: tuple[str, ...] = option((), "what the client index improves", IMPROVEMENTS)
    index: str = option("dsa-ign", "client index that the improvements use", INDICES)
    index_file: str = option("", "a saved index, instead of building one")
    index_strategy: str = option("global", "who trains DSA-IGN", STRATEGIES)
    index_encoder: str = option("builtin", "what embeds images and labels", tuple(ENCODERS))
    index_clip_model: str = option("", "open_clip's model (clip); empty: ViT-B-32")
    index_clip_weights: str = option("", "its pretrained tag or a file; empty: openai")
    index_epochs: int = option(500, "E: epochs of DSA-IGN", least=1)
    index_omit_loss: tuple[str, ...] = option((), "losses that DSA-IGN leaves out", LOSSES)
    index_decoder: str = option("linear", "how DSA-IGN restores its input", DECODERS)
    index_dropout: float = option(0.1, "dropout of DSA-IGN; 0 is faster", least=0.0)
    index_max_samples: int = option(0, "samples a client that the index sees; 0: all", least=0)
    index_part: str = option("both", "part of the index that is used", INDEX_PARTS)
    tau: float = option(0.0, "temperature of sampling; 0: 1 (global) or 0.1 (federated)", least=0.0)
    gamma: float = option(0.5, "discount of past similarity (aggregation)", least=0.0)
    lambda1: float = option(1.0, "pull of the aggregation weights to the sizes; inf: the sizes")
    local_weight: float = option(0.0, "w_r of the local loss; 0: by local_weight_rule", least=0.0)
    local_weight_rule: str = option("caption", "5 (global) or 1; or the appendix's", WEIGHT_RULES)
    omit_local_orth: bool = option(False, "leave L_orth out of the local loss")
    dist_detach: bool = option(False, "no gradient from L_dist into the model's own logits")

    state_dtype: str = option("float32", "how clients' state is stored", STATE_DTYPES)
    state_memory: float = option(0.0, "GB for clients' state; 0: half of what is free", least=0.0)

    seed: int = option(0, "seed of partition, sampling, initialisation and shuffling", least=0)
    lanes: int = option(
        0, "clients trained at the same time; 0 or auto: what the machine allows", least=0
    )
    device: str = option("auto", "where to train", DEVICES)
    deterministic: bool = option(True, "only operators that give the same bits every time")
    eval_every: int = option(1, "rounds between evaluations; the last is always one", least=1)
    checkpoint_every: int = option(5, "rounds between checkpoints", least=1)

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            check_field(f, getattr(self, f.name))
        if not 0.0 < self.participation <= 1.0:
            raise ConfigError(f"participation must be in (0, 1], got {self.participation}")
        if not 0.0 < self.sample_fraction <= 1.0:
            raise ConfigError(f"sample_fraction must be in (0, 1], got {self.sample_fraction}")
        if not 0.0 < self.train_fraction < 1.0:
            raise ConfigError(f"train_fraction must be in (0, 1), got {self.train_fraction}")
        if self.clients == 0 and self.partition != "natural":
            raise ConfigError(
                f"clients must be at least 1 with partition = {self.partition}, got 0"
            )
        if not self.alpha > 0.0 or not math.isfinite(self.alpha):
            raise ConfigError(f"alpha must be a positive number, got {self.alpha}")
        if not self.lr > 0.0 or not math.isfinite(self.lr):
            raise ConfigError(f"lr must be a positive number, got {self.lr}")
        if not self.lambda1 > 0.0:
            raise ConfigError(f"lambda1 must be positive, got {self.lambda1}")
        if not self.moon_temperature > 0.0:
            raise ConfigError(f"moon_temperature must be positive, got {self.moon_temperature}")
        for name in ("gamma", "fediir_ema"):
            if not getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} must be in [0, 1], got {getattr(self, name)}")
        if not self.momentum < 1.0:
            raise ConfigError(f"momentum must be in [0, 1), got {self.momentum}")
        self._check_index()
        if (self.train_size or self.test_size) and self.dataset != "shapes":
            raise ConfigError(f"train_size and test_size are for shapes, not {self.dataset}")

    def _check_index(self) -> None:
        """Refuse an index that cannot serve what it is to improve."""
        if "sampling" in self.improve and self.sampling != "uniform":
            raise ConfigError(
                f"sampling = {self.sampling} has no effect with improve = sampling: the index "
                "decides who takes part"
            )
        steered = [name for name in self.improve if name != "local"]
        if self.index == "local-model-weights":
            if steered:
                raise ConfigError(
                    f"improve = {', '.join(steered)} needs an index from before training; "
                    "local-model-weights serves improve = local alone"
                )
            if self.index_file:
                raise ConfigError("index = local-model-weights takes no index_file")
        if self.index != "dsa-ign" and (self.index_omit_loss or self.index_decoder != "linear"):
            raise ConfigError(
                f"index_omit_loss and index_decoder go with index = dsa-ign, not {self.index}"
            )
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
            own = {
                "moon": self.moon_mu,
                "feddyn": self.feddyn_alpha,
                "fediir": self.fediir_penalty,
            }
            return own.get(self.algorithm, 1.0)
        return 1.0 if self.index_strategy == "federated" else 5.0


_KINDS: dict[Any, Any] = {int: int, float: (int, float), bool: bool, str: str}
_KIND_NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
}


def check_field(f: dataclasses.Field, value: Any) -> None:
    """Refuse a value of another type or outside the field's choices and minimum."""
    if not isinstance(value, _KINDS.get(f.type, tuple)) or (
        isinstance(value, bool) and f.type is not bool
    ):
        raise ConfigError(f"{f.name} must be {_type_name(f)}, got {value!r}")
    choices, least = f.metadata["choices"], f.metadata["least"]
    for item in value if isinstance(value, tuple) else (value,):
        if choices is not None and item not in choices:
            raise ConfigError(f"{f.name} must be one of {', '.join(choices)}; got {item!r}")
    if least is not None and not value >= least:
        raise ConfigError(f"{f.name} must be at least {least}, got {value}")


def _type_name(f: dataclasses.Field) -> str:
    return _KIND_NAMES.get(f.type, "a list of texts")


FIELDS: dict[str, dataclasses.Field] = {f.name: f for f in dataclasses.fields(RunConfig)}

# A setting given by the user that the rest of the configuration would silently ignore.
NEEDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "alpha": ("partition", ("dirichlet",)),
    "lda": ("partition", ("dirichlet",)),
    "shards_per_client": ("partition", ("shards",)),
    "clients_per_domain": ("partition", ("by-domain",)),
    "norm": ("model", tuple(NORMED_MODELS)),
    "server_momentum": ("algorithm", ("fedavgm",)),
    "fedprox_mu": ("algorithm", ("fedprox",)),
    "feddyn_alpha": ("algorithm", ("feddyn",)),
    "max_grad_norm": ("algorithm", ("feddyn",)),
    "moon_mu": ("algorithm", ("moon",)),
    "moon_temperature": ("algorithm", ("moon",)),
    "fedlc_tau": ("algorithm", ("fedlc",)),
    "fediir_penalty": ("algorithm", ("fediir",)),
    "fediir_ema": ("algorithm", ("fediir",)),
    "index": ("improve", IMPROVEMENTS),
    "index_file": ("improve", IMPROVEMENTS),
    "index_strategy": ("improve", IMPROVEMENTS),
    "index_encoder": ("improve", IMPROVEMENTS),
    "index_clip_model": ("index_encoder", ("clip",)),
    "index_clip_weights": ("index_encoder", ("clip",)),
    "index_epochs": ("improve", IMPROVEMENTS),
    "index_omit_loss": ("improve", IMPROVEMENTS),
    "index_decoder": ("improve", IMPROVEMENTS),
    "index_dropout": ("improve", IMPROVEMENTS),
    "index_max_samples": ("improve", IMPROVEMENTS),
    "index_part": ("improve", IMPROVEMENTS),
    "tau": ("improve", ("sampling",)),
    "gamma": ("improve", ("aggregation",)),
    "lambda1": ("improve", ("aggregation",)),
    "local_weight": ("improve", ("local",)),
    "local_weight_rule": ("improve", ("local",)),
    "omit_local_orth": ("improve", ("local",)),
    "dist_detach": ("improve", ("local",)),
    "sample_fraction": ("dataset", ("shakespeare",)),
    "min_samples": ("dataset", ("shakespeare",)),
    "train_fraction": ("dataset", ("shakespeare",)),
    "augment": ("dataset", tuple(name for name in DATASETS if name != "shakespeare")),
}


def make_config(
    given: Mapping[str, Any],
    base: RunConfig | None = None,
    flags: Collection[str] = (),
    shared: Collection[str] = (),
) -> RunConfig:
    """`base` with the user's settings on top; unknown, wrong or contradictory ones are refused.

    `flags` are the settings typed by hand: one without effect is refused even at its default
    value, while a file that lists every field may hold such defaults. `shared` are those that
    other runs need as well: one without effect here goes back to its default.
    """
    for key in given:
        if key not in FIELDS:
            near = difflib.get_close_matches(key, FIELDS, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ConfigError(f"unknown setting {key!r}; {hint}Known: {', '.join(FIELDS)}")
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    base = base or RunConfig()
    config = dataclasses.replace(base, **_as_the_data_comes(values, base))
    if "clients" in flags and config.clients_per_domain:
        raise ConfigError(
            f"clients = {config.clients} has no effect with clients_per_domain = "
            f"{config.clients_per_domain}: leave one of them out"
        )
    without_effect: dict[str, Any] = {}
    for key, (other, allowed) in NEEDS.items():
        set_to = getattr(config, other)
        values_set = set_to if isinstance(set_to, tuple) else (set_to,)
        if set(values_set) & set(allowed):
            continue
        idle = key not in given or key in shared or values[key] == FIELDS[key].default
        if key in flags or not idle:
            shown = ", ".join(values_set) or "nothing"
            raise ConfigError(
                f"{key} = {given[key]} has no effect with {other} = {shown}; "
                f"it goes with {other} = {' or '.join(allowed)}"
            )
        without_effect[key] = FIELDS[key].default
    # The preset's own: back to the defaults, or the saved configuration would be refused later.
    return dataclasses.replace(config, **without_effect)


def _as_the_data_comes(values: dict[str, Any], base: RunConfig) -> dict[str, Any]:
    """Data with its own clients is dealt to them, as many as there are, and text is read by the
    LSTM, unless told otherwise."""
    dataset = values.get("dataset", base.dataset)
    if dataset in OWN_CLIENTS and dataset != base.dataset:
        values = {"partition": "natural"} | values
    if dataset == "shakespeare" != base.dataset:
        values = {"model": "lstm"} | values
    if values.get("partition", base.partition) == "natural" != base.partition:
        values = {"clients": 0} | values
    return values


def read_toml(path: Path) -> dict[str, Any]:
    """The settings in a TOML file; the error names the file and the line."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from error


def saved_config(path: Path) -> RunConfig:
    """The configuration of a run; what had no effect, and was once accepted, is the default."""
    return make_config(read_toml(path), shared=FIELDS)


def preset(name: str) -> RunConfig:
    """A shipped preset: c2v_sim/run/presets/<name>.toml."""
    if name not in PRESETS:
        raise ConfigError(f"preset must be one of {', '.join(PRESETS)}; got {name!r}")
    text = resources.files("c2v_sim.run.presets").joinpath(f"{name}.toml").read_text()
    return RunConfig(**tomllib.loads(text))  # with settings for an index, should there be one


def to_toml(config: RunConfig) -> str:
    """All settings as TOML, in the order of the fields; `--config` reads it back."""
    return tomli_w.dumps(dataclasses.asdict(config))
