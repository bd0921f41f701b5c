"""Every draw has a generator of its own, and no two local trainings share one."""

import numpy as np

from c2v_sim.system.seeding import SHUFFLE, rng, torch_seed


def test_streams_are_numpy_seed_sequences():
    expected = np.random.default_rng([2, SHUFFLE, 3, 4]).random(5)
    assert (rng(2, SHUFFLE, 3, 4).random(5) == expected).all()


def test_the_seed_of_a_local_training_is_the_specifications():
    (words,) = np.random.SeedSequence([2, 7, 3, 4]).generate_state(1, np.uint64)
    assert torch_seed(2, 3, 4) == int(words) // 2
    assert 0 <= torch_seed(2, 3, 4) < 2**63


def test_no_two_local_trainings_share_a_seed():
    """The sum seed · 1000003 + round · 1009 + client, once used here, met itself at client 1009."""
    seeds = [torch_seed(s, t, i) for s in (0, 1) for t in (1, 2, 3) for i in range(3000)]
    assert len(set(seeds)) == len(seeds)
