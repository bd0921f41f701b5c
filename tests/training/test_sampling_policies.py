"""Sampling policies without an index, against what is known of them."""

import numpy as np
import pytest
import torch

from c2v_sim.simulator.steering import Steering
from c2v_sim.training.sampling import POLICIES, checked_cohort, rest_rounds

SIZES = np.arange(1, 41)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_answers_with_different_clients_and_repeats_itself(name):
    for t in (1, 2, 9):
        first = checked_cohort(POLICIES[name](3, t, SIZES, 4), t, 40, 4)
        assert np.array_equal(first, checked_cohort(POLICIES[name](3, t, SIZES, 4), t, 40, 4))


@pytest.mark.parametrize("name", ["rested", "round-robin"])
def test_the_first_cohort_is_the_uniform_one(name):
    uniform = POLICIES["uniform"](5, 1, SIZES, 4)
    assert sorted(POLICIES[name](5, 1, SIZES, 4)) == uniform.tolist()


def test_rested_is_steered_sampling_that_no_similarity_reaches():
    vectors = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    steering = Steering(
        vectors, None, SIZES, 4, {"sampling"}, seed=2, tau=1e300, gamma=0.5, lambda1=1.0
    )
    for t in range(1, 30):
        expected = steering.cohort(t)
        assert np.array_equal(POLICIES["rested"](2, t, SIZES, 4), expected)
        steering.finish(t, expected, *steering.similarity_to(expected))


def test_rested_answers_for_any_round_first():
    in_order = [POLICIES["rested"](7, t, SIZES[:21], 2) for t in range(1, 12)]
    assert np.array_equal(POLICIES["rested"](8, 11, SIZES[:21], 2).shape, (2,))
    for t in range(1, 12):
        assert np.array_equal(POLICIES["rested"](7, t, SIZES[:21], 2), in_order[t - 1])
    for t in range(1, 12 - rest_rounds(21, 2)):
        later = np.concatenate(in_order[t : t + rest_rounds(21, 2)])
        assert not set(in_order[t - 1]) & set(later)


def test_round_robin_takes_everybody_once_before_anybody_twice():
    cohorts = [POLICIES["round-robin"](0, t, SIZES[:10], 3) for t in range(1, 21)]
    taken = np.concatenate(cohorts)
    for cycle in range(6):
        assert sorted(taken[10 * cycle : 10 * cycle + 10]) == list(range(10))
    assert all(len(set(cohort)) == 3 for cohort in cohorts)
