"""Naive indices, for the ablations and as controls: one part v per client, without training.

A new one is a file here and a line in NAIVE.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from c2v_sim.index.encoders.encoder import WIDTH
from c2v_sim.index.naive.class_prototypes import class_prototypes
from c2v_sim.index.naive.classifier_update import SKETCHED, classifier_update, sketched_update
from c2v_sim.index.naive.feature_average import centred_average, feature_average
from c2v_sim.index.naive.label_histogram import label_hellinger, label_histogram
from c2v_sim.index.naive.masked_prototypes import masked_prototypes
from c2v_sim.index.naive.mean_covariance import COLUMNS, mean_covariance
from c2v_sim.index.naive.principal_angles import DIRECTIONS, principal_angles
from c2v_sim.index.naive.private import private_average, private_histogram
from c2v_sim.index.naive.random_vectors import random_vectors


@dataclass(frozen=True)
class Naive:
    """vectors: images [N, 512], who holds them, their classes [N], K, seed -> v [M, D];
    width: K -> D; part: of the index that v is; private: `vectors` takes epsilon and delta by name;
    sent: K -> the numbers that a client sends, where they are not those of v."""

    vectors: Callable[..., Tensor]
    width: Callable[[int], int]
    part: str = "feature"
    private: bool = False
    sent: Callable[[int], int] | None = None


def _wide(classes: int) -> int:
    return WIDTH


def _per_class(classes: int) -> int:
    return classes


NAIVE = {
    "feature-average": Naive(feature_average, _wide),
    "class-prototypes": Naive(class_prototypes, lambda classes: WIDTH * classes),
    "centred-average": Naive(centred_average, _wide),
    "label-histogram": Naive(label_histogram, _per_class, part="label"),
    "random": Naive(random_vectors, _wide, sent=lambda classes: 0),
    "label-hellinger": Naive(label_hellinger, _per_class, part="label"),
    "masked-prototypes": Naive(masked_prototypes, _wide, sent=lambda classes: WIDTH * classes),
    "mean-covariance": Naive(mean_covariance, lambda classes: COLUMNS),
    "principal-angles": Naive(principal_angles, _wide, sent=lambda classes: WIDTH * DIRECTIONS),
    "classifier-update": Naive(classifier_update, lambda classes: (WIDTH + 1) * classes),
    "sketched-update": Naive(sketched_update, lambda classes: SKETCHED),
    "private-histogram": Naive(private_histogram, _per_class, part="label", private=True),
    "private-average": Naive(private_average, _wide, private=True),
}
WITHOUT_FEATURE = [name for name, naive in NAIVE.items() if naive.part != "feature"]
PRIVATE = [name for name, naive in NAIVE.items() if naive.private]
