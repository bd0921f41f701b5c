"""What a run's clients are tested by, where that is not one global model: what the loop asks."""

import numpy as np

from c2v_sim.algorithms import ALGORITHMS, Algorithm
from c2v_sim.algorithms.clusters.in_clusters import InClusters
from c2v_sim.algorithms.personal.mixture import Mixture
from c2v_sim.config import RunConfig
from c2v_sim.data.federation import Federation
from c2v_sim.index.client_index import ClientIndex
from c2v_sim.index.similarity.clusters import cluster
from c2v_sim.simulator.groups.held_out import clusters_in, matches
from c2v_sim.system import ranks
from c2v_sim.training.samplers import SAMPLERS, Sampler, as_sampler
from c2v_sim.training.samplers.evenly import EvenlyFromClusters
from c2v_sim.training.sampling import Policy


def chosen_algorithm(config: RunConfig, own: Algorithm | None, clients: int) -> Algorithm:
    """A user's own, or the one that config names; for every cluster where clients are clustered."""
    config.clusters_of(clients)  # or they are too many
    algorithm = own or ALGORITHMS[config.algorithm](config)
    if "clustering" in config.improve:
        algorithm = InClusters(algorithm)
    if "personalization" in config.improve:
        algorithm = Mixture(algorithm, config.personal_temperature)
    return algorithm


def chosen_sampler(
    config: RunConfig, own: Policy | Sampler | None, algorithm: Algorithm
) -> Sampler:
    """A user's own, or the one that config names, or that of the clusters."""
    chooses = [name for name in ("sampling", "clustering") if name in config.improve]
    if own is not None and chooses:
        raise ValueError(
            f"Simulator: a sampler and improve = {chooses[0]} both choose the cohort; leave one out"
        )
    clusters = clusters_in(algorithm)
    if chooses == ["clustering"] and clusters is not None:
        return EvenlyFromClusters(lambda: clusters.assigned)
    return as_sampler(own) if own else SAMPLERS[config.sampling](config)


def use_for_models(
    config: RunConfig, index: ClientIndex, algorithm: Algorithm, federation: Federation
) -> None:
    """The index's clusters have a model each from now on, and its similarities mix classifiers;
    also for clients that never train."""
    clusters, assigned = clusters_in(algorithm), None
    if "clustering" in config.improve and clusters is not None:
        count = config.clusters_of(index.clients)
        assigned = ranks.from_first(lambda: cluster(index.similarity(), count))
        clusters.form(assigned)
    mixture = algorithm if isinstance(algorithm, Mixture) else None
    if mixture is not None:
        mixture.use([getattr(index, part) for part in index.parts])
    if federation.held_out is not None and (assigned is not None or mixture is not None):
        new = ranks.from_first(lambda: matches(federation, config, index, assigned))
        if clusters is not None and assigned is not None:
            clusters.placed = [match.cluster or 0 for match in new]
        if mixture is not None:
            mixture.new = [match.similarity for match in new]


def models_of(algorithm: Algorithm) -> int:
    """How many global models there are."""
    clusters = clusters_in(algorithm)
    return 1 if clusters is None else clusters.count


def cohort_clusters(algorithm: Algorithm) -> np.ndarray | None:
    """The clusters in which the last cohort's clients trained; None: there is one global model."""
    clusters = clusters_in(algorithm)
    return None if clusters is None else clusters.trained


def all_clusters(algorithm: Algorithm) -> list[int] | None:
    """The cluster of every client, as it was last known."""
    clusters = clusters_in(algorithm)
    if clusters is None:
        return None
    return [clusters.cluster_of(client) for client in range(clusters.run.clients)]


def cluster_words(algorithm: Algorithm) -> str:
    """`; 3 clusters of 40, 35 and 25 clients`, where clients are in clusters of an index."""
    clusters = all_clusters(algorithm)
    if clusters is None or models_of(algorithm) == 1:
        return ""
    *sizes, last = np.sort(np.bincount(clusters))[::-1].tolist()
    return f"; {len(sizes) + 1} clusters of {', '.join(map(str, sizes))} and {last} clients"
