"""Label shares and the centred feature average with Gaussian noise: (ε, δ)-differentially private.

    v^l_i = max(0, n_i + N(0, σ²)) / N_i,          n_i the counts of the classes,  Δ = √2  [M, K]
    v^f_i = (sum_j D_ij + N(0, σ²)) / N_i, less its mean over clients,             Δ = 2   [M, 512]

Neighbours are data of a client in which one sample is replaced; N_i is public, as the weights of
aggregation need it. Δ is the most by which that moves the sum in length: embeddings are at most 1
long (longer ones are shortened). Each client sends one noisy sum, once; what follows is
post-processing. σ is the smallest for which one release is (ε, δ)-private (analytic Gaussian
mechanism, Balle and Wang 2018): with a = Δ / 2σ and b = εσ / Δ,

    δ = Φ(a - b) - e^ε Φ(-a - b)

The noise is drawn from the run's seed, so that a simulation can be repeated: whoever knows the seed
can take it away again. A deployment must draw it elsewhere.
"""

import math

import torch
from torch import Tensor

from c2v_sim.data.partition import Partition
from c2v_sim.system.seeding import PRIVACY, rng


def private_histogram(
    images: Tensor,
    partition: Partition,
    y: Tensor,
    classes: int,
    seed: int,
    *,
    epsilon: float,
    delta: float,
) -> Tensor:  # [M, K]
    """v^l of every client."""
    counts = torch.from_numpy(partition.train.counts(y.numpy(), classes)).double()
    noisy = counts + noise(counts, seed, gaussian_sigma(epsilon, delta, math.sqrt(2.0)))
    return (noisy.clamp(min=0.0) / counts.sum(1, keepdim=True)).float()


def private_average(
    images: Tensor,
    partition: Partition,
    y: Tensor,
    classes: int,
    seed: int,
    *,
    epsilon: float,
    delta: float,
) -> Tensor:  # [M, 512]
    """v^f of every client."""
    sums = torch.stack(
        [shortened(images[torch.from_numpy(ids)].double()).sum(0) for ids in partition.train]
    )
    noisy = sums + noise(sums, seed, gaussian_sigma(epsilon, delta, 2.0))
    means = noisy / torch.from_numpy(partition.sizes)[:, None]
    return (means - means.mean(0)).float()


def shortened(rows: Tensor) -> Tensor:  # [n, D]
    """The rows, none longer than 1."""
    return rows / rows.norm(dim=1, keepdim=True).clamp(min=1.0)


def noise(like: Tensor, seed: int, sigma: float) -> Tensor:  # [M, D], float64
    """What the clients add, each from a generator of its own."""
    clients, columns = like.shape
    drawn = [rng(seed, PRIVACY, i, columns).standard_normal(columns) for i in range(clients)]
    return sigma * torch.stack([torch.from_numpy(row) for row in drawn])


def gaussian_sigma(epsilon: float, delta: float, sensitivity: float) -> float:
    """The smallest σ with which one sum of this sensitivity is (ε, δ)-private."""
    from scipy.optimize import brentq  # slow to import, and seldom needed
    from scipy.stats import norm

    def excess(log_sigma: float) -> float:
        a, b = 0.5 / math.exp(log_sigma), epsilon * math.exp(log_sigma)
        return norm.cdf(a - b) - math.exp(epsilon + norm.logcdf(-a - b)) - delta

    return sensitivity * math.exp(brentq(excess, -20.0, 30.0, xtol=1e-12))
