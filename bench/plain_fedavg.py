"""PLAIN: FedAvg the way research code writes it; a baseline of bench/rounds.py.

A deep copy of the global model for every client, a DataLoader over a Subset of normalised float
tensors (num_workers=0), torch.optim.SGD, and an average of state dicts, key by key.
"""

import copy
from collections.abc import Iterable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset


def train_client(
    model: nn.Module, data: Subset, epochs: int, batch_size: int, sgd: dict[str, float]
) -> dict[str, Tensor]:
    """The state dict of a copy of `model` after the client's local epochs."""
    model = copy.deepcopy(model)
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), **sgd)
    for _ in range(epochs):
        for x, y in DataLoader(data, batch_size=batch_size, shuffle=True):
            optimiser.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimiser.step()
    return model.state_dict()


def average(states: list[dict[str, Tensor]], weights: np.ndarray) -> dict[str, Tensor]:
    """Weighted mean of state dicts; integer counts are taken from the first."""
    mean = {}
    for key, first in states[0].items():
        if first.is_floating_point():
            mean[key] = sum(w * s[key] for w, s in zip(weights.tolist(), states, strict=True))
        else:
            mean[key] = first
    return mean


def rounds(
    model: nn.Module,
    x: Tensor,  # float32 [N, …], normalised
    y: Tensor,  # int64 [N]
    clients: tuple[np.ndarray, ...],  # sample ids of each client
    cohorts: Iterable[np.ndarray],  # client ids of each round
    *,
    epochs: int,
    batch_size: int,
    sgd: dict[str, float],
) -> Iterator[nn.Module]:
    """The global model after each round (the same module every time)."""
    data = TensorDataset(x, y)
    for cohort in cohorts:
        states = [
            train_client(model, Subset(data, clients[c].tolist()), epochs, batch_size, sgd)
            for c in cohort
        ]
        sizes = np.array([len(clients[c]) for c in cohort])
        model.load_state_dict(average(states, sizes / sizes.sum()))
        yield model
