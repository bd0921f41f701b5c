"""The shares of the classes among a client's samples: a label part that needs no encoder."""

import torch
from torch import Tensor

from c2v_sim.data.partition import Partition


def label_histogram(
    images: Tensor, partition: Partition, y: Tensor, classes: int, *_: object
) -> Tensor:  # [M, K]
    """v_ic = the share of class c."""
    counts = [
        torch.bincount(y[torch.from_numpy(ids)], minlength=classes) for ids in partition.train
    ]
    shares = torch.stack(counts).double()
    return (shares / shares.sum(1, keepdim=True)).float()
