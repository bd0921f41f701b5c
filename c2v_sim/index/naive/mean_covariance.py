"""Mean and covariance of a client's embeddings, side by side, as FLUX describes clients.

    v_i = [ μ_i - mean μ,  c (σ_i - mean σ) ]        μ_i = mean_j D_ij                  [M, 512]
    σ_i = the upper triangle of the covariance of R D_ij,  R [32, 512]                  [M, 528]

c makes both halves count alike: their mean lengths are the same. R has orthonormal rows that are
drawn from the seed, so that all clients know it; the whole covariance would be 131,328 numbers.
Entries beside the diagonal are weighed by √2, so that distances are those of the matrices.
"""

import torch
from torch import Tensor

from c2v_sim.data.partition import Partition
from c2v_sim.index.encoders.encoder import WIDTH
from c2v_sim.index.naive.feature_average import centred_average
from c2v_sim.system.machine import intra_op_threads
from c2v_sim.system.seeding import CONTROL, rng

DIRECTIONS = 32
COLUMNS = WIDTH + DIRECTIONS * (DIRECTIONS + 1) // 2


def mean_covariance(
    images: Tensor, partition: Partition, y: Tensor, classes: int, seed: int
) -> Tensor:  # [M, 1040]
    """v of every client."""
    with intra_op_threads(1):
        drawn = torch.from_numpy(rng(seed, CONTROL, 1).standard_normal((WIDTH, DIRECTIONS)))
        directions = torch.linalg.qr(drawn).Q  # [512, 32]
        spread = torch.stack(
            [covariance(images[torch.from_numpy(i)].double() @ directions) for i in partition.train]
        )
    mean = centred_average(images, partition).double()
    spread = spread - spread.mean(0)
    c = mean.norm(dim=1).mean() / spread.norm(dim=1).mean().clamp(min=1e-12)
    return torch.cat([mean, c * spread], dim=1).float()


def covariance(rows: Tensor) -> Tensor:  # [n, d] -> [d (d + 1) / 2]
    """The upper triangle of the rows' covariance matrix, divided by n."""
    centred = rows - rows.mean(0)
    matrix = centred.T @ centred / len(rows)
    above, beside = torch.triu_indices(*matrix.shape)
    return matrix[above, beside] * torch.where(above == beside, 1.0, 2.0**0.5)
