"""The state of an index training, and the file from which an interrupted one goes on.

parameters [1, P], Adam's moments [2, P], the curve so far and, inside an epoch (GLOBAL), the steps
done, the sums of the four losses and the state of dropout's generator; besides, the seconds it has
taken. The file also holds every setting that decides the bits, so that another training's is
refused by name.
"""

import json
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from c2v_sim.index.config import IndexConfig
from c2v_sim.index.dsa_ign import LOSSES, loss_weights
from c2v_sim.system import tensor_file
from c2v_sim.system.errors import ConfigError
from c2v_sim.system.parse import is_a, parse_json
from c2v_sim.system.settings import Affects, facts_of, names_affecting
from c2v_sim.training.arena import Layout

SECONDS_BETWEEN_CHECKPOINTS = 30.0


@dataclass
class Training:
    """The state of a training: what a checkpoint holds."""

    parameters: Tensor  # [1, P], an arena row
    moments: Tensor  # [2, P], Adam's (GLOBAL; a client's Adam does not outlive its round)
    curve: list[list[float]] = field(default_factory=list)  # one point per epoch or round
    # Of the unfinished epoch (GLOBAL): steps done, losses summed over samples, and dropout's state.
    step: int = 0
    sums: Tensor = field(default_factory=lambda: torch.zeros(len(LOSSES)))  # [4]
    random: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))
    seconds: float = 0.0  # of the training so far, over all interruptions; NaN: unknown

    def plateaued(self, config: IndexConfig) -> bool:
        """True if the last `patience` points brought the total no further down."""
        if config.patience == 0 or len(self.curve) <= config.patience:
            return False
        weights = loss_weights(config.omit_loss)
        totals = [sum(w * v for w, v in zip(weights, p, strict=True)) for p in self.curve]
        recent, before = totals[-config.patience :], totals[: -config.patience]
        return min(recent) > min(before) - config.tolerance

    def finished(self, config: IndexConfig) -> bool:
        return len(self.curve) >= config.points or self.plateaued(config)

    def resume_draws(self, generator: torch.Generator, seed: int) -> None:
        """`generator` goes on inside the epoch from where the checkpoint left it.

        The state of a CPU's generator is of no use to that of a GPU, and the other way round: then
        it begins anew from `seed`. Devices do not agree on the last bits of a training anyway.
        """
        if self.random.shape == generator.get_state().shape:
            generator.set_state(self.random)
            return
        print(
            "warning: the checkpoint was written on another kind of device than "
            f"{generator.device}; the random numbers of the epoch that was interrupted are drawn "
            "anew from here on",
            file=sys.stderr,
        )
        generator.manual_seed(seed)


def fingerprint(config: IndexConfig, identity: str) -> dict[str, str]:
    """Everything that decides the bits on the way, to recognise a foreign checkpoint."""
    free = names_affecting(IndexConfig, Affects.PLACE | Affects.LENGTH)
    settings = {k: json.dumps(v) for k, v in asdict(config).items() if k not in free}
    return settings | {"data": identity}


class Checkpoints:
    """Writes `training` now and then; a full disk is said once and does not end the training."""

    def __init__(self, path: Path | None, training: Training, settings: dict[str, str]) -> None:
        self.path, self.training, self.settings = path, training, settings
        self.last, self.failed = time.monotonic(), False

    def save_if_due(self, anyway: bool) -> None:
        if anyway or time.monotonic() - self.last > SECONDS_BETWEEN_CHECKPOINTS:
            self.save()

    def save(self) -> None:
        if self.path is None:
            return
        try:
            save_training(self.path, self.training, self.settings)
            self.failed = False
        except OSError as error:
            if not self.failed:
                print(
                    f"warning: cannot write {self.path}: {error.strerror or error}; the training "
                    "goes on, and what is not written is lost if it is interrupted",
                    file=sys.stderr,
                )
            self.failed = True
        self.last = time.monotonic()


def save_training(path: Path, training: Training, settings: dict[str, str]) -> None:
    """Write the checkpoint: whole, or not at all (OSError)."""
    tensors = {name: getattr(training, name).cpu() for name in ("parameters", "moments", "sums")}
    tensors["random"] = training.random
    about = settings | {"curve": json.dumps(training.curve), "step": str(training.step)}
    about["seconds"] = str(training.seconds)
    tensor_file.save(path, tensors, about)


def load_training(
    path: Path, training: Training, settings: dict[str, str], layout: Layout | None = None
) -> None:
    """Bring `training` back to the saved state; a checkpoint of another training is refused.

    By the `layout` of its rows those of a file from before they had padding get theirs.
    """
    try:
        with tensor_file.opened(path) as file:
            now = facts_of(IndexConfig)  # a setting that did not exist then had its default
            defaults = {name: json.dumps(setting.default) for name, setting in now.items()}
            about = defaults | (file.metadata() or {})
            differing = [name for name, value in settings.items() if about.get(name) != value]
            if differing:
                values = [f"{n}: {about.get(n)} there, {settings[n]} now" for n in differing]
                shown = "; ".join(values)
                raise ConfigError(f"the checkpoint {path} is of another training ({shown})")
            for name in ("parameters", "moments", "sums"):
                kept, saved = getattr(training, name), file.get_tensor(name)
                kept.copy_(layout.spread(saved, kept.shape[-1]) if layout else saved)
            training.random, training.step = file.get_tensor("random"), int(about["step"])
            curve = parse_json(about["curve"])
            if not is_a(curve, list[list[float]]):
                raise ValueError(f"its curve must be lists of numbers, got {curve!r:.40}")
            training.curve[:] = curve
            training.seconds = float(about.get("seconds", "nan"))
    except ConfigError:
        raise
    except (SafetensorError, KeyError, ValueError, RuntimeError, OSError) as error:
        raise ValueError(f"the checkpoint {path} cannot be read: {error}") from error
