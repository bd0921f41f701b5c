"""The shares of the classes among a client's samples: a label part that needs no encoder.

Of their roots the cosine is Σ_c √(p_ic p_jc) = 1 - H², H the Hellinger distance of the shares.
"""

import torch
from torch import Tensor

from c2v_sim.data.partition import Partition


def label_histogram(
    images: Tensor, partition: Partition, y: Tensor, classes: int, *_: object
) -> Tensor:  # [M, K]
    """v_ic = the share of class c."""
    shares = torch.from_numpy(partition.train.counts(y.numpy(), classes)).double()
    return (shares / shares.sum(1, keepdim=True)).float()


def label_hellinger(
    images: Tensor, partition: Partition, y: Tensor, classes: int, *_: object
) -> Tensor:  # [M, K]
    """v_ic = √ of the share of class c."""
    return label_histogram(images, partition, y, classes).sqrt()
