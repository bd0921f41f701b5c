"""Similarities of clients [M, M] -> the cluster of each client [M].

Average linkage on the distances 1 - A (scikit-learn): it takes any similarity, draws nothing, and
so gives the same clusters everywhere. The number of clusters is given, or the one of 2 … 10 with
the largest silhouette, the smaller one of two that tie. Clusters are numbered in the order of
their first clients.
"""

import numpy as np
from torch import Tensor

MOST = 10  # clusters that are tried


def cluster(similarity: Tensor, k: int = 0) -> np.ndarray:  # [M, M] -> int64 [M]
    """The cluster of each client; k: how many, 0: as many as the silhouette says."""
    from sklearn.cluster import AgglomerativeClustering  # slow to import

    distances = distances_of(similarity)
    if k > len(distances):
        raise ValueError(f"clusters must be at most the {len(distances)} clients, got {k}")
    k = k or best_number(distances)
    if k == 1:
        return np.zeros(len(distances), np.int64)
    linkage = AgglomerativeClustering(n_clusters=k, metric="precomputed", linkage="average")
    return in_order(linkage.fit_predict(distances))


def best_number(distances: np.ndarray) -> int:
    """The number of clusters with the largest silhouette; 1 with fewer than three clients."""
    from sklearn.cluster import AgglomerativeClustering
    from sklearn.metrics import silhouette_score

    scores = {}
    for k in range(2, min(MOST, len(distances) - 1) + 1):
        linkage = AgglomerativeClustering(n_clusters=k, metric="precomputed", linkage="average")
        assigned = linkage.fit_predict(distances)
        scores[k] = round(silhouette_score(distances, assigned, metric="precomputed"), 12)
    return max(scores, key=lambda k: scores[k], default=1)


def distances_of(similarity: Tensor) -> np.ndarray:  # float64 [M, M]
    """1 - A, symmetric to the bit and without what rounding leaves below 0."""
    distances = (1.0 - similarity.double()).clamp(min=0.0)
    distances = (distances + distances.T) / 2.0
    return distances.fill_diagonal_(0.0).numpy()


def in_order(assigned: np.ndarray) -> np.ndarray:
    """The same clusters, numbered in the order of their first members."""
    _, first, inverse = np.unique(assigned, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]
