"""Clusters of clients by their similarities."""

import numpy as np
import pytest
import torch

from c2v_sim.index.similarity.clusters import cluster


def blocks(of, near=0.9, far=0.1, seed=0):
    """A similarity with a block for each group."""
    of = np.asarray(of)
    noise = np.random.default_rng(seed).uniform(0, 0.05, (len(of), len(of)))
    matrix = np.where(of[:, None] == of, near, far) + noise + noise.T
    return torch.from_numpy(matrix).fill_diagonal_(1.0)


def slow_linkage(similarity, k):
    """Average linkage by its definition: join the two clusters with the least mean distance."""
    distances = 1 - similarity.numpy()
    clusters = [[i] for i in range(len(distances))]
    while len(clusters) > k:
        pairs = [(a, b) for a in range(len(clusters)) for b in range(a)]
        a, b = min(pairs, key=lambda p: distances[np.ix_(clusters[p[0]], clusters[p[1]])].mean())
        joined = sorted(clusters[a] + clusters[b])
        clusters = [c for i, c in enumerate(clusters) if i not in (a, b)] + [joined]
    out = np.empty(len(distances), np.int64)
    for number, members in enumerate(sorted(clusters)):
        out[members] = number
    return out


@pytest.mark.parametrize("k", [1, 2, 4, 9])
def test_average_linkage(k):
    g = torch.Generator().manual_seed(k)
    unit = torch.nn.functional.normalize(torch.randn(9, 4, generator=g).double(), dim=1)
    assert cluster(unit @ unit.T, k).tolist() == slow_linkage(unit @ unit.T, k).tolist()


def test_the_silhouette_finds_the_number():
    of = [0, 1, 2, 0, 1, 2, 2, 1, 0]
    assert cluster(blocks(of)).tolist() == of
    assert cluster(blocks(of), 2).max() == 1


def test_few_clients():
    assert cluster(torch.ones(1, 1)).tolist() == [0]
    assert cluster(torch.eye(2)).tolist() == [0, 0]
    with pytest.raises(ValueError, match="clusters must be at most the 2 clients, got 3"):
        cluster(torch.eye(2), 3)
