"""Which samples k clients train on in each step, padded to one length."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from c2v_sim.training.local_training import LocalTraining, batch_bounds


@dataclass(frozen=True)
class Batches:
    """The samples of each step of k clients, the client with most steps first."""

    ids: Tensor  # int64 [steps, k, B], padded with a sample of the same client
    counts: np.ndarray  # int64 [steps, k], samples that count; 0 after a client's last step


def make_batches(
    samples: list[np.ndarray], clients: list[int], local: LocalTraining, t: int
) -> Batches:
    """The batches that train_client would draw for each client in round `t`."""
    bounds = [batch_bounds(len(ids), local.batch_size) for ids in samples]
    width = max(end - begin for mine in bounds for begin, end in mine)
    ids = np.zeros((local.epochs * len(bounds[0]), len(clients), width), dtype=np.int64)
    counts = np.zeros(ids.shape[:2], dtype=np.int64)
    for k, (mine, batches) in enumerate(zip(samples, bounds, strict=True)):
        used, steps = batches[-1][1], local.epochs * len(batches)
        padded = np.full((local.epochs, len(batches) * width), mine[0])
        for epoch, order in enumerate(local.orders(len(mine), t, clients[k])):
            padded[epoch, :used] = mine[order[:used]]
        ids[:steps, k] = padded.reshape(steps, width)
        counts[:steps, k] = [end - begin for begin, end in batches] * local.epochs
    return Batches(torch.from_numpy(ids), counts)
