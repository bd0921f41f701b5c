"""FedAvg the slow, obvious way: copied modules, torch.optim.SGD, state dicts. The oracle.

Shares nothing with the simulator but the specification's random streams.
"""

import copy
import math

import numpy as np
import torch
import torch.nn.functional as F


def normalised(x, mean, std):
    """uint8 [B, H, W, C] -> float [B, C, H, W]; other data as it is."""
    if x.dtype != torch.uint8:
        return x
    return ((x.float() / 255 - torch.tensor(mean)) / torch.tensor(std)).permute(0, 3, 1, 2)


def train_client(model, dataset, ids, config, t, client):
    """`model` after the client's local epochs."""
    model = copy.deepcopy(model).train()
    optimiser = torch.optim.SGD(
        model.parameters(),
        lr=config.lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
    )
    order = np.random.default_rng([config.seed, 3, t, client])
    for _ in range(config.local_epochs):
        shuffled = ids[order.permutation(len(ids))] if config.shuffle else ids
        for start in range(0, len(ids), config.batch_size):
            batch = shuffled[start : start + config.batch_size]
            if len(batch) == 1 and len(ids) > 1 and config.batch_size > 1:
                continue
            x = normalised(dataset.x_train[batch], dataset.mean, dataset.std)
            optimiser.zero_grad()
            F.cross_entropy(model(x), dataset.y_train[batch]).backward()
            optimiser.step()
    return model


def cohort_of(config, clients, t):
    """The k largest of M Gumbel draws, ascending."""
    k = config.cohort or max(1, math.floor(config.participation * clients + 1e-9))
    noise = np.random.default_rng([config.seed, 2, t]).gumbel(size=clients)
    return sorted(sorted(range(clients), key=lambda i: -noise[i])[:k])


def average(models, weights):
    """Weighted mean of state dicts; integer counts take the largest."""
    states = [m.state_dict() for m in models]
    out = {}
    for name, first in states[0].items():
        if first.is_floating_point():
            out[name] = sum(w * s[name].double() for w, s in zip(weights, states, strict=True))
            out[name] = out[name].to(first.dtype)
        else:
            out[name] = torch.stack([s[name] for s in states]).amax(0)
    return out


def run(model, federation, config):
    """The global model after config.rounds rounds."""
    model = copy.deepcopy(model)
    partition = federation.partition
    for t in range(1, config.rounds + 1):
        cohort = cohort_of(config, partition.clients, t)
        trained = [
            train_client(model, federation.dataset, partition.train[i], config, t, i)
            for i in cohort
        ]
        sizes = np.array([len(partition.train[i]) for i in cohort])
        model.load_state_dict(average(trained, sizes / sizes.sum()))
    return model


@torch.no_grad()
def client_accuracies(model, federation):
    """Accuracy on each client's test samples, one client at a time."""
    dataset, model = federation.dataset, copy.deepcopy(model).eval()
    accuracies = []
    for ids in federation.partition.test:
        x = normalised(dataset.x_test[ids], dataset.mean, dataset.std)
        accuracies.append((model(x).argmax(1) == dataset.y_test[ids]).float().mean().item())
    return accuracies
