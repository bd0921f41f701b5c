"""The model that a run trains: a base, and what algorithm and case study iii add to it.

One random stream for all parts, the base first, so that its weights are those of a plain run.
"""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from c2v_sim.algorithms import Algorithm
from c2v_sim.algorithms.local_regulariser import LocalRegulariser, add_projection
from c2v_sim.config import RunConfig
from c2v_sim.data.dataset import Dataset
from c2v_sim.data.text_windows import Windows
from c2v_sim.data.weights import weights_file
from c2v_sim.index.encoders.encoder import WIDTH
from c2v_sim.index.naive import NAIVE
from c2v_sim.models import build_model, check_model, logits
from c2v_sim.models.draws import mark_draws
from c2v_sim.models.faster.layers import take_over_layers
from c2v_sim.models.pretrained import Pretrained, load_pretrained
from c2v_sim.models.split import NoSplit, Split, split
from c2v_sim.simulator.classifier_index import classifier_width
from c2v_sim.simulator.objective import Regularised
from c2v_sim.system.machine import in_own_thread, nothing_kept
from c2v_sim.system.seeding import seeded_construction


@dataclass(frozen=True)
class Assembled:
    """A model on the CPU and what it is trained by; a regulariser's index is still empty."""

    model: nn.Module
    pretrained: Pretrained | None
    objective: Algorithm | Regularised


@nothing_kept()
def assemble(
    config: RunConfig,
    dataset: Dataset,
    algorithm: Algorithm,
    model: nn.Module | None,
    sample: Tensor,  # [1, …], an input
    feature_width: int | None,
    classifier: str | None = None,
) -> Assembled:
    """`model`, a user's own (which stays as it is), or the one that config names, made whole.

    feature_width: columns of a given index's feature part; None: those of the kind in config.
    classifier: the name of the part of a user's own model that makes the logits; None: found.
    """
    objective: Algorithm | Regularised = algorithm
    with seeded_construction(config.seed):
        base, pretrained = base_model(config, dataset, model, sample, classifier)
        check_output(base, dataset, sample)
        whole = algorithm.adapt_model(base, width_of(base, sample), dataset.classes)
        check_model(whole)
        if "local" in config.improve:
            columns = index_width(config, whole, dataset.classes, feature_width)
            add_projection(whole, width_of(whole, sample), columns, dataset.classes)
            orth, dist = config.local_weights
            regulariser = LocalRegulariser(
                torch.zeros(0, columns),
                orth_weight=orth,
                dist_weight=dist,
                form=config.local_orth,
                direction=config.dist_direction,
                detach=config.dist_detach,
            )
            grows = config.index == "local-model-weights"
            objective = Regularised(algorithm, regulariser, index_grows=grows)
    if config.conv == "auto":
        take_over_layers(whole)
    return Assembled(whole, pretrained, objective)


def base_model(
    config: RunConfig,
    dataset: Dataset,
    own: nn.Module | None,
    sample: Tensor,
    classifier: str | None,
) -> tuple[nn.Module, Pretrained | None]:
    """A user's own model, or the one that config names, with what it starts from."""
    if own is not None and config.pretrained:
        raise ValueError(
            "pretrained is for the named models; load weights into your own model yourself"
        )
    if own is not None:
        return own_model(own, dataset, torch.cat([sample, sample]), classifier), None
    if classifier is not None:
        raise ValueError("classifier names a part of your own model; give that as model")
    shape = tuple(dataset.x_train.shape[1:])
    try:
        model = build_model(
            config.model, classes=dataset.classes, input_shape=shape, norm=config.norm, seed=None
        )
    except ValueError as error:
        raise ValueError(f"{error}. {how_samples_come(dataset)}") from error
    if not config.pretrained:
        return model, None
    return model, load_pretrained(model, *weights_file(config.pretrained, config.data_dir))


def own_model(own: nn.Module, dataset: Dataset, x: Tensor, classifier: str | None) -> nn.Module:
    """A copy of a user's own model with features and classifier; x [2, …]: inputs to see it by."""
    model = copy.deepcopy(own)
    try:
        model = split(model, x, classifier)
        mark_draws(model, x)
    except (NoSplit, TypeError):
        raise
    except Exception as error:  # whatever the user's code may raise
        raise cannot_take(type(own).__name__, dataset, x[:1], error) from error
    return model


def cannot_take(name: str, dataset: Dataset, x: Tensor, error: Exception) -> ValueError:
    return ValueError(
        f"model {name} cannot take an input of {list(x.shape)}: {first_line(error)}. "
        f"{how_samples_come(dataset)}; change the model's first layer, or the shape of the data"
    )


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def check_output(model: nn.Module, dataset: Dataset, sample: Tensor) -> None:
    """Refuse a model that cannot take a sample, or does not give a number for each class."""
    shown = model.whole if isinstance(model, Split) else model
    name, training = type(shown).__name__, model.training

    def shape_of_output() -> tuple[int, ...]:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            return tuple(logits(model.eval(), sample).shape)

    try:
        shape = in_own_thread(shape_of_output)
    except (RuntimeError, IndexError) as error:
        raise cannot_take(name, dataset, sample, error) from error
    model.train(training)
    if shape != (1, dataset.classes):
        raise ValueError(
            f"model {name} must give [B, {dataset.classes}], a number for each class of "
            f"{dataset.name}, got [B, {', '.join(map(str, shape[1:]))}]; give its classifier "
            f"{dataset.classes} outputs, or name all classes with class_names"
        )


def how_samples_come(dataset: Dataset) -> str:
    """What a model is given, in words."""
    x = dataset.x_train
    if isinstance(x, Windows):
        return f"Text reaches a model as symbol numbers [B, {x.shape[1]}]"
    if x.dtype == torch.int32:
        return (
            f"Integer sequences [N, {x.shape[1]}] reach a model as symbol numbers, int64 "
            f"[B, {x.shape[1]}]; features must be floats"
        )
    if x.dtype == torch.uint8 and x.ndim == 4:
        return "Images uint8 [N, H, W, C] reach a model as float32 [B, C, H, W]"
    return (
        f"Features [N, {', '.join(map(str, x.shape[1:]))}] reach a model as floats of "
        "the same value; images must be uint8 [N, H, W, C]"
    )


def width_of(model: nn.Module, sample: Tensor) -> int:
    """Columns of z = features(x)."""
    training = model.training
    with torch.no_grad():
        z = model.eval().features(sample)  # type: ignore[operator]
    model.train(training)
    return z.shape[1]


def index_width(config: RunConfig, model: nn.Module, classes: int, given: int | None) -> int:
    """Columns of the feature part of the index that case study iii uses."""
    if config.index == "local-model-weights":
        return classifier_width(model)
    if given is not None:
        return given
    return NAIVE[config.index].width(classes) if config.index in NAIVE else WIDTH
