"""The mean of the embeddings that a client holds; also the control that every index reports."""

import torch
from torch import Tensor

from c2v_sim.data.partition import Partition


def feature_average(images: Tensor, partition: Partition, *_: object) -> Tensor:  # [M, 512]
    """v_i = mean_j D_ij."""
    means = [images[torch.from_numpy(ids)].double().mean(0) for ids in partition.train]
    return torch.stack(means).float()


def centred_average(images: Tensor, partition: Partition, *_: object) -> Tensor:  # [M, 512]
    """What distinguishes a client's mean from that of all clients: v_i - mean_k v_k."""
    average = feature_average(images, partition)
    return average - average.mean(0)
