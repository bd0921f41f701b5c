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
from c2v_sim.index.dsa_ign import WIDTH
from c2v_sim.models import build_model, check_model
from c2v_sim.models.pretrained import Pretrained, load_pretrained
from c2v_sim.simulator.classifier_index import classifier_width
from c2v_sim.system.seeding import seeded_construction


@dataclass(frozen=True)
class Assembled:
    """A model on the CPU; its regulariser's index is still empty."""

    model: nn.Module
    pretrained: Pretrained | None
    regulariser: LocalRegulariser | None  # case study iii


def assemble(
    config: RunConfig,
    dataset: Dataset,
    algorithm: Algorithm,
    model: nn.Module | None,
    sample: Tensor,  # [1, …], an input
    feature_width: int | None,
) -> Assembled:
    """`model`, a user's own (which stays as it is), or the one that config names, made whole.

    feature_width: columns of a given index's feature part; None: those of the kind in config.
    """
    pretrained, regulariser = None, None
    with seeded_construction(config.seed):
        if model is None:
            model = build_model(
                config.model,
                classes=dataset.classes,
                input_shape=tuple(dataset.x_train.shape[1:]),
                norm=config.norm,
                seed=None,
            )
            if config.pretrained:
                pretrained = load_pretrained(model, config.pretrained)
        elif config.pretrained:
            raise ValueError(
                "pretrained is for the named models; load weights into your own model yourself"
            )
        else:
            model = copy.deepcopy(model)
        check_model(model)
        model = algorithm.adapt_model(model, width_of(model, sample), dataset.classes)
        check_model(model)
        if "local" in config.improve:
            columns = index_width(config, model, dataset.classes, feature_width)
            add_projection(model, width_of(model, sample), columns, dataset.classes)
            regulariser = LocalRegulariser(
                torch.zeros(0, columns),
                weight=config.regulariser_weight,
                orth_weight=0.0 if config.omit_local_orth else None,
                form="cosine",
                detach=config.dist_detach,
            )
    return Assembled(model, pretrained, regulariser)


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
    return WIDTH * (classes if config.index == "class-prototypes" else 1)
