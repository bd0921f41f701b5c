import threading
import time

import pytest
import torch
from torch import nn

from c2v_sim.system.machine import intra_op_threads
from c2v_sim.training.arena import layout_of
from c2v_sim.training.lanes import Lanes, lane_count


@pytest.fixture
def lanes():
    model = nn.Linear(2, 2)
    made = Lanes(model, layout_of(model), 3, torch.device("cpu"))
    yield made
    made.close()


def test_every_item_runs_once_on_a_lane_of_its_own(lanes):
    busy, overlap = set(), []

    def work(lane, item):
        overlap.append(id(lane) in busy)
        busy.add(id(lane))
        time.sleep(0.002)
        busy.discard(id(lane))
        return item * item, torch.get_num_threads()

    results = dict(lanes.run(work, range(20)))
    assert {item: r[0] for item, r in results.items()} == {i: i * i for i in range(20)}
    assert {r[1] for r in results.values()} == {1}
    assert not any(overlap)


def test_items_start_in_the_given_order(lanes):
    started = []
    list(lanes.run(lambda lane, item: started.append(item), [5, 3, 9]))
    assert sorted(started) == [3, 5, 9]
    single = Lanes(nn.Linear(1, 1), layout_of(nn.Linear(1, 1)), 1, torch.device("cpu"))
    started.clear()
    list(single.run(lambda lane, item: started.append(item), [5, 3, 9]))
    single.close()
    assert started == [5, 3, 9]


def test_an_error_stops_the_other_lanes_and_is_raised(lanes):
    finished, before = [], threading.active_count()

    def work(lane, item):
        if item == 0:
            raise ZeroDivisionError("lane 0")
        for _ in range(2000):
            if lanes.stopped():
                return
            time.sleep(0.001)
        finished.append(item)

    with pytest.raises(ZeroDivisionError, match="lane 0"):
        list(lanes.run(work, range(10)))
    assert finished == []
    assert threading.active_count() <= before + lanes.count
    assert dict(lanes.run(lambda lane, item: item, [1])) == {1: 1}  # usable afterwards


def test_lane_count(monkeypatch):
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    monkeypatch.setattr("c2v_sim.training.lanes.free_memory", lambda device: 10_000)
    assert lane_count(5, cpu, lambda: 1, 9) == lane_count(5, cuda, lambda: 1, 9) == 5
    assert lane_count(5, cpu, lambda: 1, 3) == lane_count(5, cuda, lambda: 1, 3) == 3
    assert 1 <= lane_count(0, cpu, lambda: 1 << 60, 2) <= 2
    sizes = (1, 1000, 2500, 99999)
    assert [lane_count(0, cuda, lambda size=size: size, 40) for size in sizes] == [8, 5, 2, 1]


def test_the_lanes_of_a_gpu_take_equally_many_turns(monkeypatch):
    monkeypatch.setattr("c2v_sim.training.lanes.free_memory", lambda device: 10_000)
    cohorts = {3: 3, 8: 8, 9: 5, 10: 5, 16: 8, 17: 6, 100: 8}  # at most 8 lanes
    for cohort, lanes in cohorts.items():
        assert lane_count(0, torch.device("cuda"), lambda: 1, cohort) == lanes, cohort


def test_more_lanes_than_a_gpu_has_streams_are_refused():
    cuda = torch.device("cuda")
    assert lane_count(32, cuda, lambda: 1, 100) == 32
    assert lane_count(33, torch.device("cpu"), lambda: 1, 100) == 33
    with pytest.raises(ValueError, match=r"lanes must be at most 32 on a GPU, .* got 33"):
        lane_count(33, cuda, lambda: 1, 100)


def test_intra_op_threads_restores():
    before = torch.get_num_threads()
    with intra_op_threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
