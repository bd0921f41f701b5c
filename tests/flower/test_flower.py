"""Client2Vec in Flower: the simulator's cohorts and weights, whatever clients do.

The engine itself runs in tests/examples/test_flower_app.py.
"""

import dataclasses
import importlib
import sys

import numpy as np
import pytest
import torch
from example_scripts import EXAMPLES


def test_without_flower_the_remedy_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr", None)
    for name in [n for n in sys.modules if n.startswith("c2v_sim.flower")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=r"pip install 'c2v_sim\[flower\]'"):
        importlib.import_module("c2v_sim.flower")


@pytest.fixture
def app(monkeypatch):
    """The module of the example, whose CONFIG a test may change."""
    pytest.importorskip("flwr", reason="flwr is not there (pip install 'c2v_sim[flower]')")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    return importlib.import_module("flower_app")


def grid_of(app, **options):
    from flower_grid import LocalGrid

    return LocalGrid(app.client_app, app.CLIENTS, **options)


def strategy_for(app, grid, config=None, **fedavg):
    from c2v_sim.flower import Client2VecFedAvg, gather_embeddings

    sent = gather_embeddings(grid, app.CLIENTS)
    index = sent.index(app.class_embeddings(), app.INDEX)
    given = {"fraction_evaluate": 0.0} | fedavg
    return Client2VecFedAvg(index, sent.nodes, config or app.CONFIG, **given)


def trained(app, strategy, grid, rounds):
    from flwr.app import ArrayRecord

    start = ArrayRecord(app.new_model().state_dict())
    return strategy.start(grid=grid, initial_arrays=start, num_rounds=rounds)


@pytest.mark.parametrize(
    "improve",
    [
        ("local",),
        ("sampling", "local"),
        ("aggregation", "local"),
        ("sampling", "aggregation", "local"),
    ],
    ids=" ".join,
)
def test_cohorts_weights_and_model_are_those_of_the_simulator(app, monkeypatch, improve):
    monkeypatch.setattr(app, "CONFIG", dataclasses.replace(app.CONFIG, improve=improve))
    if "sampling" not in improve:
        monkeypatch.setattr(app, "CONFIG", dataclasses.replace(app.CONFIG, tau=0.0))
    app.serve(grid_of(app), None)
    records, model = app.simulate()
    rounds = app.finished["rounds"]
    assert [r.cohort for r in rounds] == [r.cohort for r in records]
    for mine, theirs in zip(rounds, records, strict=True):
        assert mine.weights == pytest.approx(theirs.weights, abs=1e-9)
    for name, tensor in model.items():
        torch.testing.assert_close(app.finished["model"][name], tensor, atol=1e-6, rtol=0)


def test_a_client_that_fails_has_not_taken_part(app):
    def fails(kind, client, call):
        return kind == "train" and call == 2 and client == 4  # of the first cohort, 3 4 9

    grid = grid_of(app, fails=fails)
    strategy = strategy_for(app, grid)
    result = trained(app, strategy, grid, 2)
    first, second = strategy.history
    assert first.cohort == [3, 9]
    assert sum(first.weights) == pytest.approx(1.0)
    # The weights of ii, written out: softmax( log N_i + H_i / lambda1 ), H = A omega at first.
    index = strategy.index
    similarity = index.similarity().double()
    sizes = index.sizes.double()[[3, 9]]
    scores = similarity[:, [3, 9]] @ (sizes / sizes.sum())
    weights = (sizes.log() + scores[[3, 9]]).softmax(0)
    assert first.weights == pytest.approx(weights.tolist(), abs=1e-6)
    assert strategy.steering.last[4] < 0 or 4 in second.cohort  # it did not have to rest
    assert not set(first.cohort) & set(second.cohort)  # they had
    assert result.train_metrics_clientapp[1]["loss"] > 0


def test_a_round_in_which_all_fail_changes_nothing(app):
    grid = grid_of(app, fails=lambda kind, client, call: kind == "train" and call == 2)
    strategy = strategy_for(app, grid)
    trained(app, strategy, grid, 3)
    assert [r.round for r in strategy.history] == [2, 3]


def test_those_that_are_gone_are_not_drawn_and_unknown_nodes_neither(app):
    grid = grid_of(app)
    strategy = strategy_for(app, grid, min_available_nodes=3)
    gone = {0, 1, 2, 3, 4}
    grid.connected = [node for node, client in grid.client_of.items() if client not in gone]
    grid.connected.append(10**6)  # it came after the index was made
    trained(app, strategy, grid, 3)
    cohorts = [r.cohort for r in strategy.history]
    assert [len(cohort) for cohort in cohorts] == [3, 3, 3]
    assert not gone & set(np.concatenate(cohorts).tolist())


def test_a_cohort_is_as_large_as_flower_wants_it_at_least(app):
    config = dataclasses.replace(app.CONFIG, participation=0.1)
    grid = grid_of(app)
    strategy = strategy_for(app, grid, config, min_train_nodes=4)
    trained(app, strategy, grid, 2)
    assert [len(r.cohort) for r in strategy.history] == [4, 4]


def test_without_enough_clients_of_the_index_it_is_said(app):
    grid = grid_of(app)
    strategy = strategy_for(app, grid)
    grid.connected = [10**6 + i for i in range(10)]
    with pytest.raises(RuntimeError, match="0 of the index's 10 clients are connected, and 2"):
        trained(app, strategy, grid, 1)


def test_what_makes_no_sense_is_refused(app):
    from c2v_sim.flower import Client2VecFedAvg

    grid = grid_of(app)
    strategy = strategy_for(app, grid)
    index, nodes = strategy.index, strategy.client_of
    plain = dataclasses.replace(app.CONFIG, improve=(), tau=0.0)
    cases = [
        (dict.fromkeys(nodes, 0), app.CONFIG, {}, "each of the index's rows 0..9 once"),
        (nodes, plain, {}, "use Flower's FedAvg"),
        (nodes, app.CONFIG, {"fraction_train": 0.5}, "participation of the config says"),
    ]
    for named, config, more, wrong in cases:
        with pytest.raises(ValueError, match=wrong):
            Client2VecFedAvg(index, named, config, **more)


def test_clients_that_send_nothing_are_refused(app):
    from c2v_sim.flower import gather_embeddings

    grid = grid_of(app, fails=lambda kind, client, call: client == 7)
    with pytest.raises(ValueError, match="1 of 10 clients did not send embeddings; the first fail"):
        gather_embeddings(grid, app.CLIENTS)
    grid = grid_of(app)
    grid.client_of = {node: min(client, 8) for node, client in grid.client_of.items()}
    with pytest.raises(
        ValueError, match=r"numbered 0..9, each once, got \[0, 1, 2, 3, 4, 5, 6, 7, 8\]"
    ):
        gather_embeddings(grid, app.CLIENTS)


def test_a_message_without_the_index_is_refused_by_the_local_loss(app):
    from flwr.app import Message, RecordDict

    from c2v_sim.flower import local_loss

    grid_of(app)
    message = Message(RecordDict(), message_type="train", dst_node_id=1)
    with pytest.raises(ValueError, match="has no client index; the strategy sends it"):
        local_loss(message, app.CONFIG)
