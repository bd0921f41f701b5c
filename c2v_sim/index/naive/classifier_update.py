"""What one round of training would change in a classifier, and a short sketch of it.

    v_i = (W, b) after 10 steps of gradient descent from zeros on softmax(W D_ij + b), rate 1,
    all of the client's samples in every step                                      [M, 513 K]
    sketch: v_i R,  R [513 K, 64] ~ N(0, 1/64) from the seed                       [M, 64]

As CFL and its kin compare clients by their updates, but on the embeddings, so that the index exists
before the run. The embeddings have length 1, for which rate 1 is below the largest stable one. The
expected inner products of sketches are those of the updates.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from c2v_sim.data.partition import Partition
from c2v_sim.system.machine import intra_op_threads
from c2v_sim.system.seeding import SKETCH, rng

STEPS = 10
SKETCHED = 64


def classifier_update(
    images: Tensor, partition: Partition, y: Tensor, classes: int, *_: object
) -> Tensor:  # [M, 513 K]
    """v_i = (W, b), flattened."""
    samples = (torch.from_numpy(ids) for ids in partition.train)
    with intra_op_threads(1):
        return torch.stack([one_round(images[ids], y[ids], classes).float() for ids in samples])


def one_round(rows: Tensor, y: Tensor, classes: int) -> Tensor:  # [n, D], [n] -> float64 [(D+1) K]
    """The classifier after STEPS full steps from zeros."""
    inputs = F.pad(rows.double(), (0, 1), value=1.0)  # the last column: b
    truth = F.one_hot(y, classes).double()
    weight = torch.zeros(inputs.shape[1], classes, dtype=torch.float64)
    for _ in range(STEPS):
        weight += inputs.T @ (truth - (inputs @ weight).softmax(1)) / len(rows)
    return weight.flatten()


def sketched_update(
    images: Tensor, partition: Partition, y: Tensor, classes: int, seed: int
) -> Tensor:  # [M, 64]
    """The update times a random matrix."""
    updates = classifier_update(images, partition, y, classes).double()
    drawn = rng(seed, SKETCH).standard_normal((updates.shape[1], SKETCHED))
    with intra_op_threads(1):
        return (updates @ torch.from_numpy(drawn / SKETCHED**0.5)).float()
