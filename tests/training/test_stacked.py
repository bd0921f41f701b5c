"""Stacked training against the lanes and against the slow, obvious FedAvg."""

import dataclasses

import numpy as np
import pytest
import slow_fedavg
import torch
from federations import image_federation
from torch import nn

from c2v_sim import Federation, RunConfig, Simulator
from c2v_sim.algorithms import Algorithm
from c2v_sim.algorithms.fedavgm import FedAvgM
from c2v_sim.models import MLP, build_model
from c2v_sim.simulator.build import local_training, trains_stacked
from c2v_sim.system.errors import Interrupted, TrainingError
from c2v_sim.system.machine import intra_op_threads
from c2v_sim.training.arena import layout_of
from c2v_sim.training.cohort import train_cohort
from c2v_sim.training.optimisers import Adam
from c2v_sim.training.stacked import choose_path, make_batches, train_stacked

SETTINGS = RunConfig(
    model="mlp",
    participation=1.0,
    local_epochs=2,
    batch_size=8,
    lr=0.02,
    momentum=0.9,
    weight_decay=0.05,
    seed=3,
)


def feature_federation(sizes, width=12, classes=3):
    g = np.random.default_rng(len(sizes))
    owner = np.repeat(np.arange(len(sizes)), sizes)
    x, y = g.standard_normal((len(owner), width)), g.integers(0, classes, len(owner))
    test = {"x_test": x[:5], "y_test": y[:5], "client_ids_test": owner[:5] * 0}
    return Federation.from_arrays(x, y, owner, **test, class_names=["a", "b", "c"][:classes])


def both_ways(federation, model, lanes=2, **changes):
    """(losses, rows) of the lanes, then of stacking, from the same start."""
    settings = dataclasses.replace(SETTINGS, lanes=lanes, **changes)
    s = Simulator(federation, settings, model=model)
    clients, out = np.arange(s.cohort_size), []
    for train in (train_cohort, train_stacked):
        s.training.cohort.data.fill_(torch.nan)
        losses = train(s.training, clients, 4)
        out.append((losses, s.training.cohort.data.clone()))
    s.close()
    return out


SIZES = [1, 2, 3, 8, 9, 16, 17, 25, 40]  # one sample, single-sample remainders, whole batches


@pytest.mark.parametrize("hidden", [0, 7, 64])
@pytest.mark.parametrize("changes", [{}, {"momentum": 0.0}, {"weight_decay": 0.0, "batch_size": 1}])
def test_agrees_with_the_lanes(hidden, changes):
    torch.manual_seed(1)
    model = MLP(3, (12,), hidden)
    lanes, stacked = both_ways(feature_federation(SIZES), model, **changes)
    torch.testing.assert_close(stacked[0], lanes[0], rtol=1e-5, atol=2e-6)
    torch.testing.assert_close(stacked[1], lanes[1], rtol=1e-5, atol=2e-6)
    moved = (lanes[1] - lanes[1][0]).abs().amax(dim=1)
    assert (moved[1:] > 1e-3).all(), "clients must differ for the comparison to mean anything"


def test_agrees_with_the_lanes_on_images():
    federation = image_federation(clients=5, smallest=4)
    model = build_model("linear", classes=4, input_shape=(16, 16, 3), seed=0)
    lanes, stacked = both_ways(federation, model, lr=0.001)
    torch.testing.assert_close(stacked[1], lanes[1], rtol=1e-5, atol=2e-6)


def test_agrees_with_plain_torch():
    federation = feature_federation(SIZES)
    torch.manual_seed(1)
    model = MLP(3, (12,), 7)
    _, (_, rows) = both_ways(federation, model)
    with intra_op_threads(1):
        for client, ids in enumerate(federation.partition.train):
            trained = slow_fedavg.train_client(model, federation.dataset, ids, SETTINGS, 4, client)
            wanted = torch.cat([p.detach().flatten() for p in trained.parameters()])
            wanted = layout_of(model).spread(wanted, len(rows[client]))
            torch.testing.assert_close(rows[client], wanted, rtol=1e-5, atol=2e-6)


def test_same_bits_for_any_number_of_lanes_and_threads():
    federation = feature_federation([3 + i % 11 for i in range(70)], width=40)
    torch.manual_seed(1)
    model = MLP(3, (40,), 33)
    runs = []
    for lanes, threads in ((1, 1), (2, 1), (4, 2), (1, 2)):
        with intra_op_threads(threads):
            runs.append(both_ways(federation, model, lanes=lanes)[1])
    for losses, rows in runs[1:]:
        assert torch.equal(losses, runs[0][0])
        assert torch.equal(rows, runs[0][1])


def test_batches_are_those_of_the_lanes():
    local = local_training(SETTINGS)
    ids = [np.arange(100, 117), np.arange(3)]
    batches = make_batches(ids, [9, 2], local, 6)
    assert batches.counts.tolist() == [[8, 3], [8, 3], [8, 0], [8, 0]]  # 17 % 8 = 1 is dropped
    order = np.random.default_rng([SETTINGS.seed, 3, 6, 9])
    first, second = order.permutation(17)[:16], order.permutation(17)[:16]
    assert (batches.ids[:, 0].flatten().numpy() == 100 + np.concatenate([first, second])).all()
    assert set(batches.ids[0, 1, 3:].tolist()) <= set(range(3))


def test_every_client_is_reported_and_a_stop_is_obeyed():
    s = Simulator(feature_federation([6] * 40), SETTINGS)
    done = []
    train_stacked(s.training, np.arange(40), 1, done.append)
    assert sorted(done) == list(range(40))
    s.stop.set()
    with pytest.raises(Interrupted):
        train_stacked(s.training, np.arange(40), 1)
    s.close()


def test_a_diverging_client_is_named():
    federation = feature_federation([6] * 5)
    federation.dataset.x_train[federation.partition.train[3]] = 1e30
    s = Simulator(federation, SETTINGS)
    with pytest.raises(TrainingError, match=r"round 2, client 3, algorithm fedavg.*not finite"):
        train_stacked(s.training, np.arange(5), 2)
    s.close()


class OtherLoss(Algorithm):
    def loss(self, client, x, y, z, logits):
        return logits.sum()


class OtherTerms(FedAvgM):
    def step_terms(self, client):
        return {"proximal": 0.1, "anchor": client.origin}


class OtherFeatures(MLP):
    def features(self, x):
        return super().features(x).tanh()


class OtherUpdate(Algorithm):
    def update(self, server, cohort, weights):
        pass


def path(model, local=None, objective=None, cohort=4, shape=(12,)):
    local = local or local_training(SETTINGS)
    return choose_path(model, torch.randn(2, *shape), local, objective or Algorithm(), cohort)


def test_what_is_stacked_and_why_the_rest_is_not():
    local, model = local_training(SETTINGS), MLP(3, (12,), 20)
    assert path(model).stacked
    assert path(model, objective=OtherUpdate()).stacked  # not a matter of local training
    assert path(model, objective=FedAvgM()).stacked
    assert path(MLP(3, (784,), 0), shape=(784,), cohort=100).stacked
    cnn = build_model("cnn", classes=3, input_shape=(16, 16, 3), seed=0)
    for other, why in (
        (path(model, cohort=1), "fewer than 4 clients"),
        (path(model, objective=OtherLoss()), "more than SGD on cross entropy"),
        (path(model, objective=OtherTerms()), "more than SGD on cross entropy"),
        (path(OtherFeatures(3, (12,), 20)), "it calls tanh"),
        (path(MLP(10, (3072,), 200), shape=(3072,)), "616,610 parameters, and above 200,000"),
        (path(cnn, shape=(3, 16, 16)), "its part conv1 is a Conv2d"),
        (path(model, dataclasses.replace(local, augment=True)), "images are augmented"),
        (path(model, dataclasses.replace(local, optimiser=Adam())), "the optimiser is Adam"),
    ):
        assert not other.stacked
        assert why in str(other)
    model.projection = nn.Linear(20, 5)  # trained by a loss of its own
    assert "projection.bias takes no part in its output" in str(path(model))


def test_hooks_that_are_replaced_on_the_object_are_not_stacked_either():
    fedavg = Algorithm()
    fedavg.begin = lambda client: None
    assert not fedavg.plain_sgd


def test_an_own_algorithm_is_trained_by_its_own_loss():
    federation = feature_federation([5, 6, 7, 8])
    changes = {"model": "linear", "rounds": 1, "local_epochs": 1, "momentum": 0.0}
    config = dataclasses.replace(SETTINGS, **changes, weight_decay=0.0)
    assert Simulator(federation, config).path.stacked
    simulator = Simulator(federation, config, algorithm=OtherLoss())
    start = simulator.global_model()["classifier.bias"]
    simulator.run()
    simulator.close()
    # One batch per client, and the sum of all logits grows with each bias by its samples.
    mean = (np.array([5, 6, 7, 8]) ** 2).sum() / 26
    moved = simulator.global_model()["classifier.bias"] - start
    torch.testing.assert_close(moved, torch.full((3,), -config.lr * float(mean)))


@pytest.mark.parametrize(
    ("changes", "stacked"),
    [
        ({"model": "linear"}, True),
        ({"algorithm": "fedavgm"}, True),
        ({"algorithm": "fedprox"}, False),
        ({"model": "cnn"}, False),
        ({"improve": ("local",)}, False),
        ({"participation": 0.1}, False),
    ],
)
def test_whether_a_run_stacks_is_known_before_it_is_built(changes, stacked):
    federation = image_federation(clients=10, smallest=2)
    config = dataclasses.replace(SETTINGS, **changes)
    simulator = Simulator(federation, config)
    assert trains_stacked(federation, config) == simulator.path.stacked == stacked
    simulator.close()


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_a_run_that_stacks_equals_plain_torch_whatever_the_lanes(model):
    federation = feature_federation(SIZES)
    settings = dataclasses.replace(SETTINGS, model=model, rounds=2, participation=0.6)
    ends = []
    for lanes in (1, 2):
        simulator = Simulator(federation, dataclasses.replace(settings, lanes=lanes))
        assert simulator.path.stacked
        simulator.run()
        simulator.close()
        ends.append(simulator.global_model())
    start = build_model(model, classes=3, input_shape=(12,), seed=settings.seed)
    with intra_op_threads(1):
        wanted = slow_fedavg.run(start, federation, settings).state_dict()
    for name in wanted:
        assert torch.equal(ends[0][name], ends[1][name])
        torch.testing.assert_close(ends[0][name], wanted[name], rtol=1e-5, atol=5e-6, msg=name)
