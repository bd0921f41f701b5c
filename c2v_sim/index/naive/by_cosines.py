"""Similarities of all pairs of clients -> one vector per client that has them as cosines.

    S = Q diag(λ) Qᵀ,   v_i = (√λ_1 Q_i1, √λ_2 Q_i2, …) of the 512 largest λ > 0    [M, 512]

For an S that is positive semidefinite with a diagonal of ones, as a Gram matrix of unit vectors is,
cos(v_i, v_j) = S_ij up to 512 clients. Beyond, and for another S, v is the nearest of its kind:
negative eigenvalues count as 0.
"""

import torch
from torch import Tensor

from c2v_sim.index.encoders.encoder import WIDTH
from c2v_sim.system.machine import intra_op_threads

MOST_CLIENTS = 10_000  # whose pairs still fit: 0.8 GB, and minutes of work


def check_pairs(clients: int, kind: str) -> None:
    """Refuse a federation whose pairs of clients are too many to be looked at."""
    if clients > MOST_CLIENTS:
        raise ValueError(
            f"index = {kind} compares all pairs of clients and takes at most {MOST_CLIENTS:,}, got "
            f"{clients:,}; centred-average and mean-covariance need no pairs"
        )


def vectors_by_cosines(similarity: Tensor) -> Tensor:  # float64 [M, M] -> [M, 512]
    """The vectors; columns beyond the clients are zeros."""
    with intra_op_threads(1):  # the last bits must not depend on the number of cores
        values, columns = torch.linalg.eigh(similarity)
    values, columns = values.flip(0)[:WIDTH], columns.flip(1)[:, :WIDTH]  # largest first
    largest = columns.abs().argmax(0, keepdim=True)
    columns = columns * columns.gather(0, largest).sign()  # eigh leaves the sign open
    vectors = columns * values.clamp(min=0.0).sqrt()
    return torch.nn.functional.pad(vectors, (0, WIDTH - vectors.shape[1])).float()
