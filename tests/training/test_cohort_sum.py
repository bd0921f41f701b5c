"""A cohort that is summed while it trains has the bits of one whose rows are kept."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from c2v_sim import Federation, RunConfig, Simulator
from c2v_sim.algorithms import Algorithm
from c2v_sim.algorithms.fednova import FedNova
from c2v_sim.ops._dispatch import native_missing
from c2v_sim.system.errors import TrainingError
from c2v_sim.training.aggregation import CohortSum, average, shares
from c2v_sim.training.arena import Arena, layout_of

pytestmark = pytest.mark.skipif(native_missing is not None, reason=str(native_missing))
LAYOUT = layout_of(nn.Sequential(nn.Linear(37, 61), nn.BatchNorm1d(61)))


def arena(rows, seed=0):
    made = Arena(LAYOUT, rows)
    g = torch.Generator().manual_seed(seed)
    made.data.copy_(torch.randn(made.data.shape, generator=g))
    made.integers.copy_(torch.randint(-9, 9, made.integers.shape, generator=g))
    return made


def row(of, i):
    one = Arena(LAYOUT, 1)
    one.data.copy_(of.data[i : i + 1])
    one.integers.copy_(of.integers[i : i + 1])
    return one


@pytest.mark.parametrize("order", [*itertools.permutations(range(4))])
def test_rows_in_any_order_have_the_bits_of_the_average(order):
    kept, weights = arena(4), shares(torch.tensor([3, 1, 4, 1]))
    wanted, got, summed = Arena(LAYOUT, 1), Arena(LAYOUT, 1), CohortSum(LAYOUT)
    average(wanted, kept, weights)
    summed.begin(weights)
    summed.add(3, row(kept, 0))  # of a cohort that was interrupted
    summed.begin(weights)
    for i in order:
        summed.add(i, row(kept, i))
    average(got, summed, weights)
    assert torch.equal(got.data, wanted.data)
    assert torch.equal(got.integers, wanted.integers)


def test_other_weights_and_missing_rows_are_refused():
    kept, weights, summed = arena(2), torch.tensor([0.5, 0.5]), CohortSum(LAYOUT)
    summed.begin(weights)
    summed.add(0, row(kept, 0))
    with pytest.raises(RuntimeError, match="averages_as_given"):
        average(Arena(LAYOUT, 1), summed, weights)
    summed.add(1, row(kept, 1))
    with pytest.raises(RuntimeError, match="other weights"):
        average(Arena(LAYOUT, 1), summed, torch.tensor([0.25, 0.75]))
    average(Arena(LAYOUT, 1), summed, weights)


class Looking(Algorithm):
    """FedAvg that looks at rows, so that they are kept."""

    def finish(self, client, row, origin):
        assert row.isfinite().all()


def federation():
    g = np.random.default_rng(0)
    x = g.integers(0, 256, (90, 16, 16, 3), dtype=np.uint8)
    owners = np.repeat(np.arange(6), [30, 5, 20, 5, 10, 20])
    return Federation.from_arrays(x, np.arange(90) % 3, owners, test_fraction=0.2)


def trained(lanes, algorithm=None, **changes):
    settings = {"model": "resnet8", "rounds": 2, "batch_size": 8, "participation": 1.0}
    config = RunConfig(**settings | {"lanes": lanes, "eval_every": 2} | changes)
    simulator = Simulator(federation(), config, algorithm=algorithm)
    for _ in simulator.rounds():
        pass
    return simulator


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_run_has_the_bits_of_one_that_keeps_rows(lanes):
    summed, kept = trained(lanes), trained(2, Looking())
    assert isinstance(summed.training.cohort, CohortSum)
    assert len(kept.training.cohort.data) == 6
    for name, tensor in summed.global_model().items():
        assert torch.equal(tensor, kept.global_model()[name]), name


def test_an_algorithm_that_changes_the_weights_keeps_rows():
    assert len(trained(1, FedNova()).training.cohort.data) == 6


def test_a_model_that_is_not_finite_is_named_and_leaves_no_trace():
    simulator = Simulator(
        federation(), RunConfig(model="cnn", lr=1e30, participation=1.0, lanes=1, batch_size=8)
    )
    before = simulator.server.data.clone()
    with pytest.raises(TrainingError, match="client 0, 1, 2, 3, 4, 5"):
        next(simulator.rounds())
    assert torch.equal(simulator.server.data, before)
