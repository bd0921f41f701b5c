"""Naive indices, for the ablations: one part v per client, without training.

A new one is a file here and a line in NAIVE.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from c2v_sim.data.partition import Partition
from c2v_sim.index.encoders.encoder import WIDTH
from c2v_sim.index.naive.class_prototypes import class_prototypes
from c2v_sim.index.naive.feature_average import feature_average


@dataclass(frozen=True)
class Naive:
    """vectors: images [N, 512], who holds them, their classes [N], K -> v [M, D]; width: K -> D."""

    vectors: Callable[[Tensor, Partition, Tensor, int], Tensor]
    width: Callable[[int], int]


NAIVE = {
    "feature-average": Naive(feature_average, lambda classes: WIDTH),
    "class-prototypes": Naive(class_prototypes, lambda classes: WIDTH * classes),
}
