"""Several global models, against the slow implementation; who is tested by which."""

from functools import lru_cache

import numpy as np
import pytest
import slow_clusters
import torch
from federations import made_up_index, simulator_with
from slow_fedavg import normalised
from test_algorithms import FEDERATION, ONE_MODEL, SETTINGS, TOLERANCE, close, model_for, tensors_of

from c2v_sim import Algorithm, RunConfig, Simulator
from c2v_sim.index.similarity.clusters import cluster
from c2v_sim.system.errors import ConfigError
from c2v_sim.system.machine import intra_op_threads
from c2v_sim.training.samplers.evenly import EvenlyFromClusters

INDEX = made_up_index(FEDERATION)


@lru_cache
def simulated(**changes):
    config = RunConfig(**SETTINGS | changes)
    simulator = simulator_with(FEDERATION, config, INDEX, model=model_for(changes))
    records = list(simulator.rounds())
    simulator.close()
    return simulator, records


def check_models(simulator, models):
    assert len(simulator.server.data) >= len(models)
    for number, wanted in enumerate(models):
        found = simulator.global_model(number).items()
        for (name, tensor), value in zip(found, tensors_of(wanted), strict=True):
            close(tensor, value, f"cluster {number}, {name}")


@torch.no_grad()
def accuracies(model_of):
    """Of each client by the slow model that `model_of` gives it."""
    dataset, out = FEDERATION.dataset, []
    for client, ids in enumerate(FEDERATION.partition.test):
        x = normalised(dataset.x_test[ids], dataset.mean, dataset.std)
        right = model_of(client).eval()(x).argmax(1) == dataset.y_test[ids]
        out.append(right.float().mean().item())
    return out


CASES = [
    *((name, ()) for name in ONE_MODEL),
    ("feddyn", ("sampling",)),
    ("moon", ("aggregation", "local")),
]


@pytest.mark.parametrize(("algorithm", "improve"), CASES)
def test_a_cluster_is_a_run_of_its_own(algorithm, improve):
    changes = {"algorithm": algorithm, "improve": ("clustering", *improve), "clusters": 2}
    simulator, records = simulated(**changes)
    assigned = cluster(INDEX.similarity(), 2).tolist()
    assert sorted(np.bincount(assigned).tolist()) != [0, 6]
    with intra_op_threads(1):
        parts = (assigned, INDEX.feature, INDEX.label, model_for(changes))
        clusters, cohorts = slow_clusters.run(FEDERATION, simulator.config, *parts)
    assert [r.cohort for r in records] == cohorts
    assert [r.clusters for r in records] == [[assigned[i] for i in c] for c in cohorts]
    check_models(simulator, [one.model for one in clusters])
    models = [simulator.global_model(c) for c in range(2)]
    assert max((models[0][n] - models[1][n]).abs().max() for n in models[0]) > 10 * TOLERANCE
    if algorithm != "fedbn":
        assert {r.tested for r in records} == {"cluster"}
        wanted = accuracies(lambda client: clusters[assigned[client]].model)
        assert simulator.client_accuracy.tolist() == pytest.approx(wanted)


def test_the_silhouette_says_how_many():
    simulator, _ = simulated(improve=("clustering",), rounds=1)
    assigned = cluster(INDEX.similarity())
    assert simulator.algorithm.assigned.tolist() == assigned.tolist()
    assert len(simulator.server.data) == assigned.max() + 1 > 1


def test_one_cluster_is_the_plain_algorithm_on_the_same_cohorts():
    changes = {"algorithm": "feddyn", "participation": 1.0}
    one, _ = simulated(improve=("clustering",), clusters=1, **changes)
    plain, _ = simulated(**changes)
    assert torch.equal(one.server.data, plain.server.data)


def test_ifca():
    changes = {"algorithm": "ifca", "ifca_models": 3, "seed": 5}  # not all choose alike
    simulator, records = simulated(**changes)
    with intra_op_threads(1):
        models, choices = slow_clusters.ifca(FEDERATION, simulator.config, model_for(changes))
        chosen = [slow_clusters.best_model(FEDERATION, models, i) for i in range(6)]
    assert [r.clusters for r in records] == choices
    assert len({c for own in choices for c in own}) > 1
    check_models(simulator, models)
    assert simulator.client_accuracy.tolist() == pytest.approx(
        accuracies(lambda client: models[chosen[client]])
    )


@pytest.mark.parametrize("ratio", [0.9, 0.0])
def test_cfl(ratio):
    changes = {"algorithm": "cfl", "cfl_ratio": ratio, "cfl_clusters": 4, "rounds": 6}
    simulator, records = simulated(**changes)
    with intra_op_threads(1):
        models, history = slow_clusters.cfl(FEDERATION, simulator.config, model_for(changes))
    begins = [[0] * 6, *history]
    wanted = [[begins[r.round - 1][i] for i in r.cohort] for r in records]
    assert [r.clusters for r in records] == wanted
    assert simulator.algorithm.clusters_of(np.arange(6)).tolist() == history[-1]
    assert (max(history[-1]) > 0) == (ratio > 0)
    check_models(simulator, models)
    assert simulator.client_accuracy.tolist() == pytest.approx(
        accuracies(lambda client: models[history[-1][client]])
    )


@pytest.mark.parametrize("k", [1, 4, 7, 20])
def test_cohorts_are_drawn_evenly_from_the_clusters(k):
    clusters = np.repeat([0, 1, 2], [11, 6, 3])
    sampler, taken = EvenlyFromClusters(lambda: clusters), np.zeros(20)
    for t in range(1, 2001):
        cohort = sampler(7, t, np.ones(20), k)
        assert len(set(cohort.tolist())) == k
        counts = np.bincount(clusters[cohort], minlength=3)
        assert (np.abs(counts - k * np.array([11, 6, 3]) / 20) < 1).all()
        taken[cohort] += 1
    assert taken / 2000 == pytest.approx(np.full(20, k / 20), abs=0.05)


class Whole(Algorithm):
    name = "whole"

    def local_loss(self, client, x, y):
        return super().local_loss(client, x, y)


def test_what_does_not_go_with_clusters_is_refused():
    config = RunConfig(**SETTINGS | {"improve": ("clustering",)})
    with pytest.raises(ValueError, match="whole has a `local_loss` of its own"):
        Simulator(FEDERATION, config, algorithm=Whole())
    with pytest.raises(ValueError, match="a sampler and improve = clustering both choose"):
        Simulator(FEDERATION, config, sampler=lambda seed, t, sizes, k: np.arange(k))
    with pytest.raises(ConfigError, match="clusters must be at most the 6 clients, got 7"):
        Simulator(FEDERATION, RunConfig(improve=("clustering",), clusters=7))


def test_more_models_than_memory_are_refused():
    config = RunConfig(**SETTINGS | {"algorithm": "ifca", "ifca_models": 10**9})
    with pytest.raises(ValueError, match=r"1,000,000,000 global models .* or fewer of them"):
        Simulator(FEDERATION, config)
