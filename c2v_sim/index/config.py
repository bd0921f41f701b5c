"""The settings of a client index: one frozen dataclass that, with a federation, reproduces it."""

import math
from dataclasses import dataclass, fields

from c2v_sim.config import DEVICES, STRATEGIES, RunConfig, check_field, option
from c2v_sim.index.dsa_ign import DECODERS, HIDDEN, LOSSES, loss_weights
from c2v_sim.index.encoders import ENCODERS, make_encoder
from c2v_sim.index.encoders.encoder import Encoder
from c2v_sim.index.naive import NAIVE
from c2v_sim.system.errors import ConfigError

KINDS = ("dsa-ign", *NAIVE)  # those that exist before training


@dataclass(frozen=True)
class IndexConfig:
    """How a client index is made; the defaults are the specification's."""

    index: str = option("dsa-ign", "kind of index", KINDS)
    encoder: str = option("builtin", "what embeds images and labels", tuple(ENCODERS))
    clip_model: str = option("", "open_clip's model (encoder clip); empty: ViT-B-32")
    clip_weights: str = option("", "its pretrained tag or a checkpoint file; empty: the default")
    strategy: str = option("global", "who trains DSA-IGN", STRATEGIES)
    epochs: int = option(500, "E: epochs, or local epochs in all (federated)", least=1)
    decoder: str = option("linear", "how DSA-IGN restores its input", DECODERS)
    omit_loss: tuple[str, ...] = option((), "losses left out of the sum", LOSSES)
    batch_size: int = option(128, "pairs a step", least=2)
    index_lr: float = option(1e-3, "learning rate of Adam")
    dropout: float = option(0.1, "dropout of the encoder layers; 0 is faster", least=0.0)
    hidden: int = option(HIDDEN, "hidden units of the feed-forward layers", least=1)
    upload: int = option(128, "pairs that a client uploads (global)", least=1)
    participation: float = option(0.1, "share of the clients in a round (federated)")
    local_epochs: int = option(10, "epochs a client trains in a round (federated)", least=1)
    patience: int = option(
        0, "epochs or rounds without progress before stopping; 0: never", least=0
    )
    tolerance: float = option(1e-3, "smaller gains of the total loss are no progress", least=0.0)
    max_samples: int = option(0, "samples of a client that are embedded and used; 0: all", least=0)
    threads: int = option(2, "threads of the server (global); decides the last bits", least=1)
    seed: int = option(0, "seed of initialisation, uploads, shuffling and cohorts", least=0)
    lanes: int = option(0, "clients trained at the same time; 0: one a core", least=0)
    device: str = option("auto", "where to train", DEVICES)

    def __post_init__(self) -> None:
        for f in fields(self):
            check_field(f, getattr(self, f.name))
        if not self.index_lr > 0.0 or not math.isfinite(self.index_lr):
            raise ConfigError(f"index_lr must be a positive number, got {self.index_lr}")
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"dropout must be in [0, 1), got {self.dropout}")
        if not 0.0 < self.participation <= 1.0:
            raise ConfigError(f"participation must be in (0, 1], got {self.participation}")
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


def index_settings(config: RunConfig) -> IndexConfig:
    """The index that a run needs; everything that RunConfig does not name is the default."""
    return IndexConfig(
        index=config.index,
        encoder=config.index_encoder,
        clip_model=config.index_clip_model,
        clip_weights=config.index_clip_weights,
        strategy=config.index_strategy,
        epochs=config.index_epochs,
        decoder=config.index_decoder,
        omit_loss=config.index_omit_loss,
        dropout=config.index_dropout,
        max_samples=config.index_max_samples,
        seed=config.seed,
        lanes=config.lanes,
        device=config.device,
    )
