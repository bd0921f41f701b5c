"""The angles between the subspaces that clients' embeddings lie in, as PACFL compares clients.

    U_i [512, p_i]  the left singular vectors of D_iᵀ for its p = 5 largest singular values
    S_ij = |U_iᵀ U_j|² / √(p_i p_j) = mean_r cos² θ_r of the principal angles, where p_i = p_j

The D_i are not centred, as in PACFL. A client whose embeddings span fewer directions has p_i of
them. S is the Gram matrix of the projections U_i U_iᵀ, so the cosines of v are S itself.
"""

import torch
from torch import Tensor

from c2v_sim.data.partition import Partition
from c2v_sim.index.naive.by_cosines import check_pairs, vectors_by_cosines
from c2v_sim.system.machine import intra_op_threads

DIRECTIONS = 5


def principal_angles(images: Tensor, partition: Partition, *_: object) -> Tensor:  # [M, 512]
    """v with cos(v_i, v_j) = S_ij."""
    check_pairs(partition.clients, "principal-angles")
    with intra_op_threads(1):
        bases = [leading_directions(images[torch.from_numpy(ids)]) for ids in partition.train]
    return vectors_by_cosines(mean_squared_cosines(torch.stack(bases)))


def leading_directions(rows: Tensor) -> Tensor:  # [n, 512] -> float64 [5, 512]
    """U_iᵀ; rows of zeros where there are fewer directions."""
    _, scale, directions = torch.linalg.svd(rows.double(), full_matrices=False)
    kept = directions[:DIRECTIONS] * (scale[:DIRECTIONS, None] > 1e-9 * scale[0])
    return torch.nn.functional.pad(kept, (0, 0, 0, DIRECTIONS - len(kept)))


def mean_squared_cosines(bases: Tensor) -> Tensor:  # [M, 5, 512] -> [M, M]
    """S, a row at a time: all inner products at once would be 25 M² numbers."""
    flat = bases.flatten(0, 1)  # [5 M, 512]
    overlaps = [(own @ flat.T).square().view(len(own), -1, DIRECTIONS).sum((0, 2)) for own in bases]
    sizes = bases.square().sum((1, 2)).clamp(min=1.0).sqrt()  # √p_i
    return torch.stack(overlaps) / (sizes[:, None] * sizes)
