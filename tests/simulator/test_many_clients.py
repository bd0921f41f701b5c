"""100,000 small clients through the public API; what a million take is in bench/scale.py."""

import dataclasses
import gc
import sys
import tracemalloc

import numpy as np
import pytest
import torch
from federations import bits, index_of

from c2v_sim import Federation, RunConfig, Simulator

CLIENTS, EACH, WIDTH = 100_000, 3, 8


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(CLIENTS * EACH, WIDTH)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    return x, y, rng.permutation(np.repeat(np.arange(CLIENTS), EACH))


@pytest.fixture(scope="module")
def federation(arrays):
    x, y, clients = arrays
    half = CLIENTS // 2  # every other client has a test sample
    return Federation.from_arrays(
        x, y, clients, x_test=x[:half], y_test=y[:half], client_ids_test=np.arange(half) * 2
    )


def settings(**more):
    return RunConfig(
        **{"model": "linear", "rounds": 2, "participation": 1e-4, "local_epochs": 1, "lr": 0.1}
        | more
    )


def run(federation, config, **parts):
    simulator = Simulator(federation, config, **parts)
    try:
        return simulator.run(), bits(simulator.state())
    finally:
        simulator.close()


def test_nothing_is_made_for_each_client_but_its_numbers(arrays):
    """Objects and bytes, beside the arrays that the user brought."""
    x, y, clients = arrays
    gc.collect()
    before = sys.getallocatedblocks()
    tracemalloc.start()
    federation = Federation.from_arrays(
        x, y, clients, x_test=x[:CLIENTS], y_test=y[:CLIENTS], client_ids_test=clients[:CLIENTS]
    )
    simulator = Simulator(federation, settings())
    records = simulator.run().records
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    made = sys.getallocatedblocks() - before
    simulator.close()
    assert len(records) == 2
    assert made < CLIENTS // 4
    data = x.nbytes + y.nbytes + clients.nbytes
    assert most < 0.5 * data + 50 * CLIENTS + 2**22  # 4 MB for what every run has


def test_accuracy_is_the_mean_over_the_clients_with_test_samples(federation):
    assert federation.tested == CLIENTS // 2
    simulator = Simulator(federation, settings(rounds=1))
    record = simulator.run().final
    weights = {name: t.double() for name, t in simulator.global_model().items()}
    simulator.close()
    own = simulator.client_accuracy
    assert np.isnan(own[1::2]).all()
    assert record.accuracy == pytest.approx(own[::2].mean())
    (bias,) = (t for t in weights.values() if t.dim() == 1)
    (weight,) = (t for t in weights.values() if t.dim() == 2)
    data = federation.dataset
    right = (data.x_test.double() @ weight.T + bias).argmax(1) == data.y_test
    assert (own[::2] == right.numpy()).mean() > 0.9999  # but for ties in the last bit


def test_lanes_do_not_show(federation):
    results = [run(federation, settings(lanes=lanes)) for lanes in (1, 2)]
    assert results[0][1] == results[1][1]
    accuracies = [[r.accuracy for r in result.records] for result, _ in results]
    assert accuracies[0] == accuracies[1]


def test_an_index_in_bfloat16_steers_by_its_rounded_vectors(federation):
    vectors = torch.randn(CLIENTS, 12, generator=torch.Generator().manual_seed(3))
    index = index_of(federation, vectors[:, :8], vectors[:, 8:])
    rounded = index_of(federation, vectors[:, :8].bfloat16(), vectors[:, 8:].bfloat16())
    wide = index_of(federation, rounded.feature.float(), rounded.label.float())
    config = settings(rounds=3, improve=("sampling", "aggregation"), tau=0.2)
    half = dataclasses.replace(config, steering_dtype="bfloat16")
    exact = run(federation, config, index=wide)
    assert run(federation, half, index=index)[1] == exact[1]
    assert run(federation, half, index=rounded)[1] == exact[1]
    assert run(federation, config, index=rounded)[1] == exact[1]
    assert run(federation, config, index=index)[1] != exact[1]


def test_test_samples_of_very_many_clients_are_drawn_at_once():
    clients = 100_001
    ids = np.random.default_rng(1).permutation(np.repeat(np.arange(clients), 3))
    x = np.arange(len(ids), dtype=np.float32)[:, None]

    def make(seed):
        return Federation.from_arrays(x, ids % 2, ids, test_fraction=0.34, seed=seed)

    federation = make(4)
    assert (federation.partition.sizes == 2).all()
    assert (federation.partition.test.sizes == 1).all()
    data = federation.dataset
    tests = data.x_test[:, 0].long().numpy()
    assert sorted([*data.x_train[:, 0].tolist(), *tests.tolist()]) == list(range(len(ids)))
    own = federation.partition.test.owners
    assert np.array_equal(ids[tests][federation.partition.test.flat], own)
    assert make(4).dataset.sha256 == data.sha256 != make(5).dataset.sha256
    # Each of a client's three samples is as likely as the others.
    order = np.argsort(ids, kind="stable").reshape(clients, 3)
    drawn = np.bincount(np.nonzero(np.isin(order, tests))[1], minlength=3)
    assert abs(drawn / clients - 1 / 3).max() < 0.01
