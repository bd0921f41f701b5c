import numpy as np
import pytest

from c2v_sim.data.partition import Partition
from c2v_sim.simulator.evaluation import accuracy


def partition(test, domains=None):
    train = tuple(np.array([i]) for i in range(len(test)))
    test = tuple(np.array(ids, dtype=np.int64) for ids in test)
    return Partition(train=train, test=test, convention="by hand", domains=domains)


def test_measures_by_hand():
    marks = np.array([1, 1, 0, 0, 1, 0], dtype=bool)
    result = accuracy(marks, partition([[0, 1], [2, 3, 4, 5], []], domains=(0, 0, 1)))
    assert result.mean == pytest.approx((1.0 + 0.25) / 2)  # the empty client does not count
    assert result.weighted == pytest.approx(3 / 6)
    assert result.whole == pytest.approx(3 / 6)
    assert result.worst10 == pytest.approx(0.25)
    assert np.isnan(result.clients[2])
    assert result.domains[0] == pytest.approx(0.625)
    assert np.isnan(result.domains[1])


def test_worst_tenth_is_a_mean_over_clients():
    marks = np.zeros(40, dtype=bool)
    marks[5:] = True
    clients = [[i] for i in range(40)]
    assert accuracy(marks, partition(clients)).worst10 == 0.0
    marks[:3] = True
    assert accuracy(marks, partition(clients)).worst10 == pytest.approx(2 / 4)


def test_clients_are_told_apart_as_one_by_one():
    rng = np.random.default_rng(0)
    marks = rng.random(300) < 0.6
    sizes = [0, *rng.integers(0, 5, 80).tolist(), 0]
    lists = np.split(rng.permutation(300)[: sum(sizes)], np.cumsum(sizes)[:-1])
    result = accuracy(marks, partition(lists))
    wanted = [marks[ids].mean() if len(ids) else np.nan for ids in lists]
    np.testing.assert_array_equal(result.clients, wanted)
    assert result.weighted == marks[np.concatenate(lists)].mean()
