"""Class prototypes compared over the classes that both clients hold, as FMCL does.

    S_ij = mean over the common classes c of cos(p_ic, p_jc),  p_ic = mean of D of class c

0 without a common class. The spec's class prototypes have zeros for an absent class instead, so
that clients look unlike each other by what they lack. S need not be positive semidefinite; what
becomes of it then is in by_cosines.py.
"""

import torch
from torch import Tensor

from c2v_sim.data.partition import Partition
from c2v_sim.index.naive.by_cosines import check_pairs, vectors_by_cosines
from c2v_sim.index.naive.class_prototypes import class_prototypes


def masked_prototypes(
    images: Tensor, partition: Partition, y: Tensor, classes: int, *_: object
) -> Tensor:  # [M, 512]
    """v with cos(v_i, v_j) = S_ij, or near it."""
    check_pairs(partition.clients, "masked-prototypes")
    flat = class_prototypes(images, partition, y, classes)
    return vectors_by_cosines(masked_cosines(flat.view(partition.clients, classes, -1)))


def masked_cosines(prototypes: Tensor) -> Tensor:  # [M, K, D] -> float64 [M, M]
    """S; a prototype of zeros is that of an absent class."""
    sums = torch.zeros(len(prototypes), len(prototypes), dtype=torch.float64)
    common = torch.zeros_like(sums)
    for of_class in prototypes.double().unbind(1):
        unit = torch.nn.functional.normalize(of_class, dim=1)
        present = of_class.ne(0).any(1).double()
        sums += unit @ unit.T
        common += present[:, None] * present
    return sums / common.clamp(min=1.0)
