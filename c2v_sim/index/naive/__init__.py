"""Naive indices, for the ablations and as controls: one part v per client, without training.

A new one is a file here and a line in NAIVE.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from c2v_sim.data.partition import Partition
from c2v_sim.index.encoders.encoder import WIDTH
from c2v_sim.index.naive.class_prototypes import class_prototypes
from c2v_sim.index.naive.feature_average import centred_average, feature_average
from c2v_sim.index.naive.label_histogram import label_histogram
from c2v_sim.index.naive.random_vectors import random_vectors


@dataclass(frozen=True)
class Naive:
    """vectors: images [N, 512], who holds them, their classes [N], K, seed -> v [M, D];
    width: K -> D; part: of the index that v is."""

    vectors: Callable[[Tensor, Partition, Tensor, int, int], Tensor]
    width: Callable[[int], int]
    part: str = "feature"


NAIVE = {
    "feature-average": Naive(feature_average, lambda classes: WIDTH),
    "class-prototypes": Naive(class_prototypes, lambda classes: WIDTH * classes),
    "centred-average": Naive(centred_average, lambda classes: WIDTH),
    "label-histogram": Naive(label_histogram, lambda classes: classes, part="label"),
    "random": Naive(random_vectors, lambda classes: WIDTH),
}
WITHOUT_FEATURE = [name for name, naive in NAIVE.items() if naive.part != "feature"]
