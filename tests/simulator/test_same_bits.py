"""Whatever the lanes, wherever it was stopped or continued: a run ends in the same bits."""

from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from federations import bits, image_federation, simulator_with

from c2v_sim import RunConfig
from c2v_sim.algorithms import ALGORITHMS
from c2v_sim.system.errors import Interrupted

FEDERATION = image_federation(clients=8, smallest=2)


def simulator_for(name, lanes=1, **changes):
    algorithm = name.removeprefix("clusters, ")
    settings = {
        "algorithm": algorithm,
        "model": "resnet8"
        if algorithm in ("moon", "feddyn", "fedbn")
        else "cnn",  # one with statistics
        "rounds": 3,
        "participation": 0.5,
        "local_epochs": 1,
        "batch_size": 8,
        "momentum": 0.9,
        "improve": ("sampling", "aggregation", "local"),
        "moon_mu": 1.0,
        "seed": 6,
        "lanes": lanes,
    }
    config = RunConfig(**settings | RUNS[name] | changes)
    return simulator_with(FEDERATION, config)


def without_seconds(records):
    return [replace(record, seconds={}) for record in records]


def end_of(simulator):
    records = without_seconds(simulator.rounds())
    simulator.close()
    return bits(simulator.state()), records


CLUSTERED = {"improve": ("clustering", "aggregation", "local")}
RUNS = {name: {} for name in ALGORITHMS} | {
    "cfl": {"participation": 1.0, "cfl_ratio": 9.0},  # divided in every round
    "clusters, feddyn": CLUSTERED,
    "clusters, fedadam": CLUSTERED,
}


@lru_cache
def reference(algorithm):
    """With one lane: state after two rounds, bits after three, records."""
    simulator = simulator_for(algorithm)
    rounds = simulator.rounds()
    first = [next(rounds), next(rounds)]
    middle = {name: t.clone() for name, t in simulator.state().items()}
    end, last = end_of(simulator)
    cohorts = [set(r.cohort) for r in first + last]
    assert cohorts[0] & cohorts[2], "somebody must come back for its state to matter"
    return middle, end, without_seconds(first) + last


@pytest.mark.parametrize("algorithm", RUNS)
def test_any_number_of_lanes(algorithm):
    _, end, records = reference(algorithm)
    for lanes in (2, 4):
        assert end_of(simulator_for(algorithm, lanes)) == (end, records)


@pytest.mark.parametrize("algorithm", RUNS)
def test_continued_from_its_state(algorithm):
    middle, end, records = reference(algorithm)
    simulator = simulator_for(algorithm)
    assert bits(simulator.state()) != bits(middle)
    simulator.load_state(2, middle)
    assert bits(simulator.state()) == bits(middle)
    assert end_of(simulator) == (end, records[2:])


@pytest.mark.parametrize("algorithm", RUNS)
def test_a_round_that_is_stopped_leaves_no_trace(algorithm):
    middle, end, records = reference(algorithm)
    simulator = simulator_for(algorithm)
    begin, begun = simulator.algorithm.begin, []

    def stopping(client):
        begin(client)
        if client.round == 3:
            begun.append(client.id)
            if len(begun) == 3:  # two of four, or more, have trained
                simulator.stop.set()

    simulator.algorithm.begin = stopping
    rounds = simulator.rounds()
    assert [next(rounds).round, next(rounds).round] == [1, 2]
    with pytest.raises(Interrupted):
        next(rounds)
    assert len(begun) >= 3
    assert simulator.round == 2
    assert bits(simulator.state()) == bits(middle)
    with pytest.raises(Interrupted):
        next(simulator.rounds())
    simulator.stop.clear()
    assert end_of(simulator) == (end, records[2:])


def test_an_earlier_state_is_put_back():
    middle, end, records = reference("feddyn")
    simulator = simulator_for("feddyn")
    simulator.run()
    assert bits(simulator.state()) == end
    simulator.load_state(2, middle)
    assert end_of(simulator) == (end, records[2:])


def test_the_index_of_local_models_is_put_back_with_the_state():
    moving = {"improve": ("local",), "index": "local-model-weights", "rounds": 2}
    first, other = (simulator_for("fedavg", **moving) for _ in range(2))
    next(first.rounds())
    other.load_state(1, first.state())
    index = other.regulariser.index
    assert len(index) == 4
    assert torch.equal(index, first.regulariser.index)
    assert end_of(other) == end_of(first)
