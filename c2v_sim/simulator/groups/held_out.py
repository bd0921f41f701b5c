"""Clients that never train: what they are matched to, and the accuracy on them, kept apart.

    global    the global model on each such client's test samples
    cluster   the model of the cluster that the client is matched to (ClientIndex.match), or, with
              IFCA, the one of least loss on the client's training samples
    personal  either with the classifier mixed by the client's similarity to those that train

Unweighted means over the held-out clients with test samples. Nothing is trained on them; where no
model is shared (FedProto), there is none for them.
"""

import numpy as np
import torch

from c2v_sim.algorithms import Algorithm
from c2v_sim.algorithms.clusters.in_clusters import InClusters
from c2v_sim.algorithms.fedavg import CLUSTER, GLOBAL, PERSONAL
from c2v_sim.algorithms.personal.mixture import Mixture
from c2v_sim.config import RunConfig, index_settings
from c2v_sim.data.federation import Federation
from c2v_sim.data.resident import ResidentData
from c2v_sim.index.build import index_embeddings
from c2v_sim.index.client_index import ClientIndex
from c2v_sim.index.encoders.prompts import embeddable
from c2v_sim.index.matching import Match
from c2v_sim.simulator.personal import Write, correct_by_client
from c2v_sim.system.errors import ConfigError
from c2v_sim.training.arena import Arena
from c2v_sim.training.lanes import Lane, Lanes


def matches(
    federation: Federation, config: RunConfig, index: ClientIndex, clusters: np.ndarray | None
) -> list[Match]:
    """What each held-out client is like, by the embeddings and classes of its training samples."""
    if federation.held_out is None:
        return []
    if not embeddable(federation.dataset):
        raise ConfigError(
            "hold_out_clients: encoders see images and texts only, so that new clients with "
            f"features {list(federation.dataset.x_train.shape)} cannot be matched by the index"
        )
    settings = index_settings(config)
    held = Federation(federation.dataset, federation.held_out)
    images = index_embeddings(held, settings, config.data_dir).images
    used = held.limited(settings.max_samples, settings.seed)
    y, of = used.dataset.y_train, None if clusters is None else torch.from_numpy(clusters)
    try:
        each = (torch.from_numpy(ids) for ids in used.partition.train)
        return [index.match(images[ids], y[ids], clusters=of) for ids in each]
    except ValueError as error:
        raise ConfigError(f"hold_out_clients: {error}") from error


def held_out_accuracy(
    lanes: Lanes,
    server: Arena,
    data: ResidentData,
    federation: Federation,
    algorithm: Algorithm,
) -> dict[str, float]:
    """By the kind of models that were tested; empty where nobody is held out."""
    held = federation.held_out
    if held is None or not held.tested or not algorithm.shares_model:
        return {}
    test = held.test
    clients = np.flatnonzero(test.sizes).tolist()

    def mean(write: Write) -> float:
        marks = correct_by_client(lanes, server, data, test, clients, write)
        return float(np.mean([marks[client].mean() for client in clients]))

    shared = clusters_in(algorithm)
    placed = [0] * len(clients) if shared is None else shared.place_new(clients)
    if placed is None:
        return {}
    of = dict(zip(clients, placed, strict=True))

    def given(lane: Lane, client: int) -> None:
        lane.client.row.data[0].copy_(server.data[of[client]])

    out = {GLOBAL if shared is None else CLUSTER: mean(given)}
    if isinstance(algorithm, Mixture):
        algorithm.before_test(clients)

        def mixed(lane: Lane, client: int) -> None:
            given(lane, client)
            algorithm.mix(lane.client.row.data[0], algorithm.new[client])

        out[PERSONAL] = mean(mixed)
    return out


def clusters_in(algorithm: Algorithm) -> InClusters | None:
    """What keeps the models of clusters, where there are some."""
    inner = algorithm.inner if isinstance(algorithm, Mixture) else algorithm
    return inner if isinstance(inner, InClusters) else None
