"""Vectors that know nothing: the floor that every other index has to beat."""

import torch
from torch import Tensor

from c2v_sim.data.partition import Partition
from c2v_sim.index.encoders.encoder import WIDTH
from c2v_sim.system.seeding import CONTROL, rng


def random_vectors(
    images: Tensor, partition: Partition, y: Tensor, classes: int, seed: int
) -> Tensor:  # [M, 512]
    """v_i ~ N(0, 1) in every coordinate."""
    drawn = rng(seed, CONTROL).standard_normal((partition.clients, WIDTH))
    return torch.from_numpy(drawn).float()
