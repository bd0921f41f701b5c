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

from c2v_sim.aggregation import ALGORITHMS
from c2v_sim.datasets import DATASETS
from c2v_sim.dirichlet import LDA
from c2v_sim.models import MODELS, NORMED_MODELS, NORMS
from c2v_sim.partition import PARTITIONERS

PRESETS = ("quick", "paper")
AUGMENTATIONS = ("none", "crop-flip")
DEVICES = ("auto", "cpu", "cuda")
INDICES = ("none",)
IMPROVEMENTS = ("sampling", "aggregation", "local")


class ConfigError(ValueError):
    """A setting that is unknown, out of range or contradicts another."""


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

    clients: int = option(100, "number of clients", least=1)
    partition: str = option("dirichlet", "how samples are dealt to clients", tuple(PARTITIONERS))
    alpha: float = option(0.1, "Dirichlet concentration; small: few classes a client")
    lda: str = option("per_client", "Dirichlet convention", tuple(LDA))
    shards_per_client: int = option(2, "label shards a client gets (shards)", least=1)
    clients_per_domain: int = option(0, "clients a domain (by-domain); 0: from clients", least=0)

    model: str = option("cnn", "client model", tuple(MODELS))
    norm: str = option("batch", "normalisation of the residual networks", tuple(NORMS))
    algorithm: str = option("fedavg", "federated algorithm", tuple(ALGORITHMS))
    rounds: int = option(100, "communication rounds", least=1)
    participation: float = option(0.1, "share of the clients in a round's cohort")
    local_epochs: int = option(5, "epochs a client trains", least=1)
    batch_size: int = option(128, "samples a local step", least=1)
    lr: float = option(0.01, "learning rate of local SGD")
    momentum: float = option(0.0, "momentum of local SGD", least=0.0)
    weight_decay: float = option(5e-5, "weight decay of local SGD", least=0.0)
    augment: str = option("none", "training-image augmentation, on the device", AUGMENTATIONS)

    index: str = option("none", "client index that steers the run", INDICES)
    improve: tuple[str, ...] = option((), "what the index improves", IMPROVEMENTS)

    seed: int = option(0, "seed of partition, sampling, initialisation and shuffling", least=0)
    lanes: int = option(0, "clients trained at the same time; 0 or auto: one a core", least=0)
    device: str = option("auto", "where to train", DEVICES)
    deterministic: bool = option(True, "only operators that give the same bits every time")
    eval_every: int = option(1, "rounds between evaluations; the last is always one", least=1)
    checkpoint_every: int = option(5, "rounds between checkpoints", least=1)

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            check_field(f, getattr(self, f.name))
        if not 0.0 < self.participation <= 1.0:
            raise ConfigError(f"participation must be in (0, 1], got {self.participation}")
        if not self.alpha > 0.0 or not math.isfinite(self.alpha):
            raise ConfigError(f"alpha must be a positive number, got {self.alpha}")
        if not self.lr > 0.0 or not math.isfinite(self.lr):
            raise ConfigError(f"lr must be a positive number, got {self.lr}")
        if self.improve and self.index == "none":
            raise ConfigError(
                f"improve = {', '.join(self.improve)} needs a client index, and index is none; "
                f"known indices of this version: {', '.join(INDICES)}"
            )
        if (self.train_size or self.test_size) and self.dataset != "shapes":
            raise ConfigError(f"train_size and test_size are for shapes, not {self.dataset}")


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
_NEEDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "alpha": ("partition", ("dirichlet",)),
    "lda": ("partition", ("dirichlet",)),
    "shards_per_client": ("partition", ("shards",)),
    "clients_per_domain": ("partition", ("by-domain",)),
    "norm": ("model", tuple(NORMED_MODELS)),
}


def make_config(
    given: Mapping[str, Any], base: RunConfig | None = None, flags: Collection[str] = ()
) -> RunConfig:
    """`base` with the user's settings on top; unknown, wrong or contradictory ones are refused.

    `flags` are the settings typed by hand: one without effect is refused even at its default
    value, while a file that lists every field may hold such defaults.
    """
    for key in given:
        if key not in FIELDS:
            near = difflib.get_close_matches(key, FIELDS, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"unknown setting {key!r}{hint} Known: {', '.join(FIELDS)}")
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    config = dataclasses.replace(base or RunConfig(), **values)
    for key, (other, allowed) in _NEEDS.items():
        typed = key in flags or (key in given and given[key] != FIELDS[key].default)
        if typed and getattr(config, other) not in allowed:
            raise ConfigError(
                f"{key} = {given[key]} has no effect with {other} = {getattr(config, other)}; "
                f"it goes with {other} = {' or '.join(allowed)}"
            )
    return config


def read_toml(path: Path) -> dict[str, Any]:
    """The settings in a TOML file; the error names the file and the line."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from error


def preset(name: str) -> RunConfig:
    """A shipped preset: c2v_sim/presets/<name>.toml."""
    if name not in PRESETS:
        raise ConfigError(f"preset must be one of {', '.join(PRESETS)}; got {name!r}")
    text = resources.files("c2v_sim.presets").joinpath(f"{name}.toml").read_text()
    return make_config(tomllib.loads(text))


def to_toml(config: RunConfig) -> str:
    """All settings as TOML, in the order of the fields; `--config` reads it back."""
    return tomli_w.dumps(dataclasses.asdict(config))
