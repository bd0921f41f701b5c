"""The settings of a client index: one frozen dataclass that, with a federation, reproduces it.

Each field is also a setting of a run, `index_<name>` there (config/); those that are `shared` are
the run's own.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, TypeVar

from c2v_sim.index.dsa_ign import DECODERS, HIDDEN, LOSSES, loss_weights
from c2v_sim.index.encoders import ENCODERS, make_encoder
from c2v_sim.index.encoders.encoder import Encoder
from c2v_sim.index.naive import NAIVE, PRIVATE
from c2v_sim.system.errors import ConfigError
from c2v_sim.system.machine import DEVICES
from c2v_sim.system.settings import (
    NOTHING_MORE,
    PAPER,
    POSITIVE,
    SEEDS,
    Affects,
    Section,
    check_all,
    facts_of,
)

RESULT, BITS, PLACE, DATA, CLIENTS, INDEX, PACE, WORK, MEMORY, LENGTH = Affects
KINDS = ("dsa-ign", *NAIVE)  # those that exist before training
STRATEGIES = ("global", "federated")
IMPROVEMENTS = ("sampling", "aggregation", "local", "clustering")  # what an index is for in a run

of_index = Section("client index", RESULT)
of_network = Section("DSA-IGN, the network of the client index", RESULT)
of_clip = of_index.needing(encoder="clip")
of_private = of_index.needing(index=PRIVATE)
of_dsa_ign = of_network.needing(index="dsa-ign")
of_global = of_dsa_ign.needing(strategy="global")
of_federated = of_dsa_ign.needing(strategy="federated")
of_machine = Section("seed and machine")
of_server = of_machine.needing(index="dsa-ign", strategy="global")


@dataclass(frozen=True)
class IndexConfig:
    """How a client index is made; the defaults are the specification's."""

    index: str = of_index("dsa-ign", "kind of index", choices=KINDS, common=True)
    encoder: str = of_index(
        "builtin", "what embeds images and labels", choices=ENCODERS, common=True, told=PAPER
    )
    clip_model: str = of_clip("", "open_clip's model; empty: ViT-B-32", told=PAPER)
    clip_weights: str = of_clip("", "its pretrained tag or a file; empty: openai", told=PAPER)
    strategy: str = of_index("global", "who trains DSA-IGN", PACE, choices=STRATEGIES, common=True)
    # epochs and dropout do not need dsa-ign: saved runs with other indices hold them.
    epochs: int = of_network(
        500, "E: epochs, or local epochs in all (federated)", LENGTH, least=1, common=True
    )
    decoder: str = of_dsa_ign("linear", "how it restores its input", PACE, choices=DECODERS)
    omit_loss: tuple[str, ...] = of_dsa_ign((), "losses left out of the sum", choices=LOSSES)
    batch_size: int = of_dsa_ign(128, "pairs per step", PACE, least=2)
    index_lr: float = of_dsa_ign(1e-3, "learning rate of Adam", **POSITIVE)
    dropout: float = of_network(
        0.1, "dropout of the encoder layers; 0 is faster", PACE, least=0.0, below=1.0
    )
    hidden: int = of_dsa_ign(HIDDEN, "hidden units of the feed-forward layers", PACE, least=1)
    upload: int = of_global(128, "pairs that a client uploads (global)", least=1)
    participation: float = of_federated(0.1, "share of the clients in a round", above=0.0, most=1.0)
    local_epochs: int = of_federated(10, "epochs per client and round", least=1)
    patience: int = of_dsa_ign(
        0, "epochs or rounds without progress before stopping; 0: never", LENGTH, least=0
    )
    tolerance: float = of_dsa_ign(
        1e-3, "smaller gains of the total loss are no progress", LENGTH, least=0.0
    )
    max_samples: int = of_index(0, "samples per client that are embedded and used; 0: all", least=0)
    epsilon: float = of_private(
        1.0, "ε of a private index: less is more private", least=1e-3, most=1e6
    )
    delta: float = of_private(1e-5, "δ of a private index", least=1e-12, below=1.0)
    threads: int = of_server(
        2, "threads of the server (global); decides the last bits", BITS | PACE, least=1
    )
    seed: int = of_machine(0, "of all that is drawn", BITS, shared=True, common=True, **SEEDS)
    lanes: int = of_machine(
        0,
        "clients trained at once; 0: one per core",
        PLACE,
        least=0,
        auto=True,
        shared=True,
        common=True,
    )
    device: str = of_machine(
        "auto", "where to train", BITS | PLACE | PACE, choices=DEVICES, shared=True
    )

    def __post_init__(self) -> None:
        check_all(self)
        if (self.clip_model or self.clip_weights) and self.encoder != "clip":
            raise ConfigError(
                f"clip_model and clip_weights go with encoder = clip, not {self.encoder}"
            )
        try:
            loss_weights(self.omit_loss)
        except ValueError as error:
            raise ConfigError(f"omit_loss: {error}") from error

    @property
    def points(self) -> int:
        """Length of a complete curve: epochs, or rounds."""
        return self.epochs if self.strategy == "global" else -(-self.epochs // self.local_epochs)

    def make_encoder(self) -> Encoder:
        """What embeds; the error says how to get weights that are not there."""
        given = {"model": self.clip_model, "pretrained": self.clip_weights}
        try:
            return make_encoder(self.encoder, **{k: v for k, v in given.items() if v})
        except RuntimeError as error:  # not installed, or not to be fetched
            raise ConfigError(str(error)) from error


# ---- as settings of a run --------------------------------------------------------------------

T = TypeVar("T")
_OWN = facts_of(IndexConfig)


def name_in_run(name: str) -> str:
    """The name that a run has for a setting of its index."""
    same = _OWN[name].shared or name.startswith("index")
    return name if same else f"index_{name}"


def field_in_run(name: str, affects: Affects = NOTHING_MORE, **facts: Any) -> Any:
    """The field of a run for a setting of its index, with more `affects` and other `facts`."""
    setting = _OWN[name]
    needs = {name_in_run(other): allowed for other, allowed in setting.needs.items()}
    needs["improve"] = IMPROVEMENTS
    affects |= setting.affects & (RESULT | BITS | PLACE) | INDEX
    facts = {"common": False} | facts  # a run has common settings enough
    return dataclasses.replace(setting, needs=needs, affects=affects, **facts).as_field()


def with_index_settings(kind: type[T]) -> type[T]:
    """A class that is to be a dataclass, with the settings of an index that it lacks, and that are
    not the run's own, put after its `index_strategy`."""
    annotations: dict[str, object] = {}
    for name, annotation in kind.__annotations__.items():
        annotations[name] = annotation
        missing = [own for own in _OWN if not _OWN[own].shared]
        missing = [own for own in missing if name_in_run(own) not in kind.__annotations__]
        for own in missing if name == "index_strategy" else ():
            annotations[name_in_run(own)] = _OWN[own].type
            setattr(kind, name_in_run(own), field_in_run(own))
    kind.__annotations__ = annotations
    return kind
