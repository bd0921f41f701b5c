"""The clusters of a run's clients, where there are several global models: what the loop asks."""

import numpy as np

from c2v_sim.algorithms import ALGORITHMS, Algorithm
from c2v_sim.algorithms.clusters.in_clusters import InClusters
from c2v_sim.config import RunConfig
from c2v_sim.data.federation import Federation
from c2v_sim.index.client_index import ClientIndex
from c2v_sim.index.similarity.clusters import cluster
from c2v_sim.simulator.groups.held_out import matches
from c2v_sim.system import ranks
from c2v_sim.training.samplers import SAMPLERS, Sampler, as_sampler
from c2v_sim.training.samplers.evenly import EvenlyFromClusters
from c2v_sim.training.sampling import Policy


def chosen_algorithm(config: RunConfig, own: Algorithm | None, clients: int) -> Algorithm:
    """A user's own, or the one that config names; for every cluster where clients are clustered."""
    config.clusters_of(clients)  # or they are too many
    algorithm = own or ALGORITHMS[config.algorithm](config)
    return InClusters(algorithm) if "clustering" in config.improve else algorithm


def chosen_sampler(
    config: RunConfig, own: Policy | Sampler | None, algorithm: Algorithm
) -> Sampler:
    """A user's own, or the one that config names, or that of the clusters."""
    chooses = [name for name in ("sampling", "clustering") if name in config.improve]
    if own is not None and chooses:
        raise ValueError(
            f"Simulator: a sampler and improve = {chooses[0]} both choose the cohort; leave one out"
        )
    if chooses == ["clustering"] and isinstance(algorithm, InClusters):
        return EvenlyFromClusters(lambda: algorithm.assigned)
    return as_sampler(own) if own else SAMPLERS[config.sampling](config)


def form_clusters(
    config: RunConfig, index: ClientIndex, algorithm: Algorithm, federation: Federation
) -> None:
    """A model for every cluster of the index from now on; clients that never train have one too."""
    assert isinstance(algorithm, InClusters)
    count = config.clusters_of(index.clients)
    algorithm.form(ranks.from_first(lambda: cluster(index.similarity(), count)))
    if federation.held_out is not None:
        new = matches(federation, config, index, algorithm.assigned)
        algorithm.placed = [match.cluster or 0 for match in new]


def models_of(algorithm: Algorithm) -> int:
    """How many global models there are."""
    return algorithm.count if isinstance(algorithm, InClusters) else 1


def cohort_clusters(algorithm: Algorithm) -> np.ndarray | None:
    """The clusters in which the last cohort's clients trained; None: there is one global model."""
    return algorithm.trained if isinstance(algorithm, InClusters) else None


def all_clusters(algorithm: Algorithm) -> list[int] | None:
    """The cluster of every client, as it was last known."""
    if not isinstance(algorithm, InClusters):
        return None
    return [algorithm.cluster_of(client) for client in range(algorithm.run.clients)]


def cluster_words(algorithm: Algorithm) -> str:
    """`; 3 clusters of 40, 35 and 25 clients`, where clients are in clusters of an index."""
    clusters = all_clusters(algorithm)
    if clusters is None or models_of(algorithm) == 1:
        return ""
    *sizes, last = np.sort(np.bincount(clusters))[::-1].tolist()
    return f"; {len(sizes) + 1} clusters of {', '.join(map(str, sizes))} and {last} clients"
