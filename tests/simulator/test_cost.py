"""What a run took, in numbers and words."""

from types import SimpleNamespace

import pytest

from c2v_sim.simulator.cost import Cost, cost_of

RECORDS = [SimpleNamespace(seconds={"train": 3.0, "evaluate": 1.0}), SimpleNamespace(seconds={})]


@pytest.mark.parametrize(
    ("index", "total", "words"),
    [
        (None, 4.0, "rounds 4.0 s"),
        (
            {"seconds": 18.25, "origin": "built"},
            22.25,
            "22.2 s: client index 18.2 s, rounds 4.0 s",
        ),
        (
            {"seconds": 18.0, "origin": "cache"},
            22.0,
            "22.0 s: client index 18.0 s (taken from the cache; it took this when it was built), "
            "rounds 4.0 s",
        ),
        (
            {"seconds": 18.0, "origin": "file"},
            22.0,
            "22.0 s: client index 18.0 s (taken from a file; it took this when it was built), "
            "rounds 4.0 s",
        ),
        (
            {"seconds": None, "origin": "file"},
            4.0,
            "rounds 4.0 s; not counted: the client index, whose time is not recorded",
        ),
        ({"seconds": 2.0}, 6.0, "6.0 s: client index 2.0 s, rounds 4.0 s"),  # an older run's
    ],
)
def test_the_index_counts_wherever_it_came_from(index, total, words):
    cost = cost_of(RECORDS, index)
    assert cost.total == total
    assert cost.words() == words


def test_a_run_without_index_is_its_rounds():
    assert cost_of(RECORDS, None) == Cost(rounds=4.0, index=0.0, origin=None)
