"""The means of the embeddings of each class that a client holds."""

import torch
from torch import Tensor

from c2v_sim.data.partition import Partition


def class_prototypes(
    images: Tensor, partition: Partition, y: Tensor, classes: int, *_: object
) -> Tensor:  # [M, K · 512]
    """v_i = the means of D over each class, side by side; zeros for a class the client lacks."""
    rows = []
    for ids in partition.train:
        own = torch.from_numpy(ids)
        count = torch.bincount(y[own], minlength=classes)
        sums = torch.zeros(classes, images.shape[1], dtype=torch.float64)
        sums.index_add_(0, y[own], images[own].double())
        rows.append((sums / count.clamp(min=1)[:, None]).flatten())
    return torch.stack(rows).float()
