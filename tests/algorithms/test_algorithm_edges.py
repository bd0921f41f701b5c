"""Clients, cohorts and indices at the edge of what is allowed, end to end."""

from typing import ClassVar

import numpy as np
import pytest
import slow_algorithms
import torch
from federations import image_federation, index_of, made_up_index, simulator_with
from torch import nn

from c2v_sim import Federation, RunConfig, Simulator
from c2v_sim.algorithms import ALGORITHMS
from c2v_sim.system.machine import intra_op_threads

ALL = ("sampling", "aggregation", "local")
# FedBN needs a model with a norm; the slow ones of the others are elsewhere.
ELSEWHERE = ("fedbn", "ifca", "fedrep", "pfedme", "fedproto")
WITHOUT_NORM = [name for name in ALGORITHMS if name not in ELSEWHERE]


def run(federation, index, module=None, **changes):
    base = {
        "model": "mlp",
        "rounds": 3,
        "participation": 0.5,
        "local_epochs": 2,
        "batch_size": 8,
        "lr": 2e-3,
        "improve": ALL,
        "seed": 1,
    }
    simulator = simulator_with(federation, RunConfig(**base | changes), index, model=module)
    records = simulator.run().records
    simulator.close()
    return simulator, records


def check_against_slow(simulator, records, index):
    with intra_op_threads(1):
        slow = slow_algorithms.run(
            simulator.federation, simulator.config, index.feature, index.label
        )
    assert [r.cohort for r in records] == slow.cohorts
    for record, weights in zip(records, slow.weights, strict=True):
        assert record.weights == pytest.approx(weights, abs=1e-6)
    got = simulator.global_model().values()
    for one, other in zip(got, slow.model.parameters(), strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("algorithm", WITHOUT_NORM)
def test_a_cohort_of_one(algorithm):
    federation = image_federation(clients=4)
    index = made_up_index(federation)
    simulator, records = run(federation, index, algorithm=algorithm, participation=0.25)
    assert all(r.weights == [1.0] for r in records)
    check_against_slow(simulator, records, index)


@pytest.mark.parametrize("algorithm", WITHOUT_NORM)
def test_a_client_with_one_sample(algorithm):
    federation = image_federation(clients=3, smallest=1)
    assert federation.partition.sizes.tolist() == [1, 8, 15]
    index = made_up_index(federation)
    simulator, records = run(federation, index, algorithm=algorithm, participation=1.0)
    check_against_slow(simulator, records, index)


def skewed_federation():
    """Client 0 has class 0 alone, client 1 classes 0 and 1, client 2 all three."""
    g = np.random.default_rng(2)
    y = np.array([0] * 12 + [0, 1] * 6 + [0, 1, 2] * 4)
    owner = np.repeat([0, 1, 2], 12)
    x = (g.normal(size=(36, 6)) + y[:, None]).astype(np.float32)
    return Federation.from_arrays(x, y, owner, x_test=x, y_test=y, client_ids_test=owner)


def test_fedlc_with_absent_classes():
    federation = skewed_federation()
    index = made_up_index(federation)
    for improve in ((), ALL):
        simulator, records = run(
            federation, index, algorithm="fedlc", participation=1.0, lr=0.05, improve=improve
        )
        assert simulator.algorithm.offsets[0].tolist() == pytest.approx([12**-0.25, 100, 100])
        check_against_slow(simulator, records, index)


def test_fedlc_teaches_a_client_of_one_class_nothing():
    simulator, _ = run(
        skewed_federation(), None, algorithm="fedlc", model="linear", participation=1.0, rounds=1,
        lr=0.05, weight_decay=0.0, improve=(),
    )  # fmt: skip
    start = Simulator(simulator.federation, simulator.config).server.data[0]
    cohort = simulator.training.cohort
    of_one_class, of_all = cohort.data[0], cohort.data[2]
    torch.testing.assert_close(of_one_class, start, rtol=0, atol=1e-9)
    assert (of_all - start).abs().max() > 1e-2
    # A class that the client lacks is left out: its row of the classifier stays where it was.
    absent = cohort.state_dict(1)["classifier.weight"][2]
    first = Simulator(simulator.federation, simulator.config).global_model()
    torch.testing.assert_close(absent, first["classifier.weight"][2], rtol=0, atol=1e-9)


@pytest.mark.parametrize("algorithm", WITHOUT_NORM)
@pytest.mark.parametrize("kind", ["all alike", "all zero"])
def test_an_index_that_tells_nothing_apart(algorithm, kind):
    federation = image_federation(clients=6)
    rows = torch.ones if kind == "all alike" else torch.zeros
    index = index_of(federation, rows(6, 512), rows(6, 4))
    simulator, records = run(federation, index, algorithm=algorithm)
    sizes = federation.partition.sizes
    for record in records:
        alike = algorithm in ("feddyn", "scaffold")
        prior = np.ones(3) if alike else sizes[record.cohort]
        assert record.weights == pytest.approx(prior / prior.sum(), abs=1e-6)
    check_against_slow(simulator, records, index)


def test_one_client_is_a_federation():
    federation = image_federation(clients=1, smallest=9)
    simulator, records = run(federation, made_up_index(federation), participation=1.0)
    assert [r.cohort for r in records] == [[0]] * 3
    check_against_slow(simulator, records, made_up_index(federation))


class Dropping(nn.Module):
    """A user's model with dropout, which notes (with gradient, training) of every call."""

    calls: ClassVar[set[tuple[bool, bool]]] = set()  # shared by all copies

    def __init__(self):
        super().__init__()
        self.hidden, self.dropout = nn.Linear(6, 20), nn.Dropout(0.5)
        self.classifier = nn.Linear(20, 3)

    def features(self, x):
        self.calls.add((torch.is_grad_enabled(), self.dropout.training))
        return self.dropout(self.hidden(x).relu())


@pytest.mark.parametrize("algorithm", ["moon", "fediir"])
def test_dropout_is_off_where_a_model_is_only_looked_at(algorithm):
    federation = skewed_federation()
    Dropping.calls.clear()
    runs = []
    for lanes in (1, 3):
        torch.manual_seed(0)
        simulator, _ = run(
            federation, None, Dropping(), algorithm=algorithm, improve=(), participation=1.0,
            lr=0.05, moon_mu=5.0, lanes=lanes,
        )  # fmt: skip
        runs.append(simulator.server.data)
    assert torch.equal(*runs)
    assert Dropping.calls == {(True, True), (False, False)}


def test_moon_leaves_the_users_model_whole():
    model = Dropping()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    run(skewed_federation(), None, model, algorithm="moon", improve=(), participation=1.0)
    after = model.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
