from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from c2v_sim.ops import sample_cohort
from c2v_sim.ops.sampling import _of_uniform


def rng(*ids):
    return np.random.default_rng([0, 2, *ids])


def first_draw(scores, tau):
    """Probability of each client to be drawn first: a softmax."""
    e = np.exp(scores / tau)
    return e / e.sum()


def inclusion_probabilities(p, k):
    """Exact, by enumeration of all ordered draws without replacement."""
    out = np.zeros(len(p))
    for order in permutations(range(len(p)), k):
        left, probability = 1.0, 1.0
        for i in order:
            probability *= p[i] / left
            left -= p[i]
        out[list(order)] += probability
    return out


def cohort_probabilities(p, k):
    """Exact probability of each unordered cohort, by the same enumeration."""
    out: dict[tuple[int, ...], float] = {}
    for order in permutations(range(len(p)), k):
        left, probability = 1.0, 1.0
        for i in order:
            probability *= p[i] / left
            left -= p[i]
        key = tuple(sorted(order))
        out[key] = out.get(key, 0.0) + probability
    return out


@pytest.mark.parametrize(("k", "tau"), [(1, 0.5), (2, 0.1), (2, 1.0), (3, 0.5), (4, 2.0)])
def test_inclusion_probabilities_are_exact(k, tau):
    """20,000 draws against enumeration: chi-square over cohorts, 4.5 sigma for each client."""
    scores = np.array([0.9, 0.1, 0.5, -0.3, 0.55])
    p = first_draw(scores, tau)
    draws, generator = 20_000, rng(k, int(10 * tau))
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(draws):
        key = tuple(sample_cohort(scores, k, tau, rng=generator).tolist())
        counts[key] = counts.get(key, 0) + 1
    exact = cohort_probabilities(p, k)
    assert set(counts) <= set(exact)
    common = [c for c in exact if exact[c] * draws >= 5]
    observed = [counts.get(c, 0) for c in common]
    expected = [exact[c] * draws for c in common]
    observed.append(draws - sum(observed))
    expected.append(draws - sum(expected))
    if expected[-1] < 1e-6:
        observed.pop(), expected.pop()
    if len(observed) > 1:
        assert stats.chisquare(observed, expected, sum_check=False).pvalue > 1e-4
    included = np.zeros(5)
    for cohort, n in counts.items():
        included[list(cohort)] += n
    want = inclusion_probabilities(p, k)
    sigma = np.sqrt(want * (1 - want) / draws)
    assert (np.abs(included / draws - want) <= 4.5 * sigma + 1e-9).all()


def test_statistic_would_notice_sampling_with_another_temperature():
    scores, draws, generator = np.array([0.9, 0.1, 0.5, -0.3, 0.55]), 20_000, rng(99)
    included = np.zeros(5)
    for _ in range(draws):
        included[sample_cohort(scores, 2, 0.55, rng=generator).numpy()] += 1
    want = inclusion_probabilities(first_draw(scores, 0.5), 2)
    sigma = np.sqrt(want * (1 - want) / draws)
    assert (np.abs(included / draws - want) > 4.5 * sigma).any()


def test_is_the_gumbel_top_k_of_the_specification():
    scores = torch.randn(100, generator=torch.Generator().manual_seed(0))
    for t in range(1, 20):
        g = rng(t).gumbel(size=100)
        want = np.sort(np.argsort(-(scores.double().numpy() / 0.1 + g), kind="stable")[:10])
        got = sample_cohort(scores, 10, 0.1, rng=rng(t))
        assert got.dtype == torch.int64
        assert got.tolist() == want.tolist()
        assert torch.equal(sample_cohort(scores, 10, 0.1, gumbel=g), got)
        first = sample_cohort(np.zeros(100), 10, 0.1, rng=rng(t))
        assert first.tolist() == np.sort(np.argsort(-g, kind="stable")[:10]).tolist()


def test_ties_take_the_lower_id():
    zeros = np.zeros(6)
    assert sample_cohort(zeros, 3, gumbel=np.ones(6)).tolist() == [0, 1, 2]
    assert sample_cohort(zeros, 3, gumbel=np.array([0, 1, 1, 1, 2, 1.0])).tolist() == [1, 2, 4]


def test_tiny_tau_ranks_by_score_and_noise_breaks_ties():
    scores = np.array([0.5, 1.0, 0.5, 0.2, 0.5])
    noise = np.array([0.0, -9.0, 3.0, 50.0, 1.0])
    for tau in (1e-6, 1e-300):
        assert sample_cohort(scores, 3, tau, gumbel=noise).tolist() == [1, 2, 4]


def test_resting_clients_are_never_drawn_unless_too_few_are_eligible():
    scores = np.zeros(8)
    eligible = np.array([0, 1, 0, 1, 0, 1, 0, 1], dtype=bool)
    for t in range(50):
        assert eligible[sample_cohort(scores, 3, rng=rng(t), eligible=eligible).numpy()].all()
    rest = np.array([3, np.inf, 5, np.inf, 5, np.inf, 5, np.inf])
    for k, want in [(4, [1, 3, 5, 7]), (5, [1, 2, 3, 5, 7]), (6, [1, 2, 3, 4, 5, 7])]:
        got = sample_cohort(scores, k, rng=rng(1), eligible=torch.from_numpy(eligible), rest=rest)
        assert got.tolist() == want
    assert sample_cohort(scores, 8, rng=rng(1), eligible=eligible, rest=rest).tolist() == [
        *range(8)
    ]
    nobody = np.zeros(8, dtype=bool)
    assert sample_cohort(scores, 2, rng=rng(1), eligible=nobody, rest=rest).tolist() == [1, 3]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(0, 10_000), st.floats(1e-9, 1e9))
def test_properties(clients, seed, tau):
    """k distinct ascending clients, always; the order in which they are given does not matter."""
    generator = np.random.default_rng(seed)
    scores, k = generator.normal(size=clients), int(generator.integers(1, clients + 1))
    cohort = sample_cohort(scores, k, tau, rng=generator)
    assert cohort.tolist() == sorted(set(cohort.tolist()))
    assert len(cohort) == k
    noise = generator.gumbel(size=clients)
    order = generator.permutation(clients)
    shuffled = sample_cohort(scores[order], k, tau, gumbel=noise[order])
    again = sorted(order[shuffled.numpy()].tolist())
    assert again == sample_cohort(scores, k, tau, gumbel=noise).tolist()


def test_a_million_clients():
    scores = np.zeros(1_000_000, dtype=np.float32)
    cohort = sample_cohort(scores, 100_000, rng=rng(1))
    assert len(cohort) == 100_000
    assert (cohort.diff() > 0).all()
    assert abs(cohort.double().mean().item() / 1e6 - 0.5) < 0.01


@pytest.mark.parametrize("tau", [0.02, 1.0, 1e300])
@pytest.mark.parametrize("k", [1, 40, 3000, 19_000])
def test_many_clients_are_drawn_as_if_all_had_their_noise(k, tau):
    clients, generator = 20_011, rng(5)
    kinds = {
        "alike": np.broadcast_to(0.0, clients),
        "normal": generator.normal(size=clients),
        "sorted": np.sort(generator.random(clients)).astype(np.float32),
        "few values": np.log(generator.integers(1, 4, clients)),
        "one far away": np.where(np.arange(clients) == 77, 50.0, 0.0),
    }
    half = generator.random(clients) < 0.5
    for t, scores in enumerate(kinds.values()):
        for eligible in (None, half if k < 9000 else ~half | half):
            drawn = rng(t)
            got = sample_cohort(scores, k, tau, rng=drawn, eligible=eligible)
            after = rng(t)
            noise = after.gumbel(size=clients)
            assert torch.equal(got, sample_cohort(scores, k, tau, gumbel=noise, eligible=eligible))
            assert drawn.random() == after.random()  # the stream has moved on alike


def test_what_few_logarithms_cannot_tell_is_left_to_all():
    v = rng(1).random(20_000)
    alike = np.broadcast_to(0.0, len(v))
    noise = -np.log(-np.log(1 - v))
    wanted = np.sort(np.argsort(-noise)[:7]).tolist()
    assert _of_uniform(alike, 7, 1.0, v, None).tolist() == wanted
    v[3] = 0.0  # gumbel would draw another number in its place
    assert _of_uniform(alike, 7, 1.0, v, None) is None


def test_equal_noise_of_many_clients_takes_the_lower_id():
    v = rng(1).random(20_000) / 2 + 0.5
    v[[5, 9, 11_000, 19_999]] = 0.25
    assert _of_uniform(np.broadcast_to(0.0, len(v)), 3, 1.0, v, None).tolist() == [5, 9, 11_000]


def test_refusals_name_what_was_wrong():
    scores = np.zeros(4)
    for tau in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="sample_cohort: tau must be > 0"):
            sample_cohort(scores, 2, tau, rng=rng(1))
    with pytest.raises(ValueError, match=r"k must be 1..4 \(the clients\), got 5"):
        sample_cohort(scores, 5, rng=rng(1))
    with pytest.raises(ValueError, match="either rng or gumbel"):
        sample_cohort(scores, 2)
    with pytest.raises(ValueError, match=r"gumbel must be \[4\], got \(3,\)"):
        sample_cohort(scores, 2, gumbel=np.zeros(3))
    with pytest.raises(ValueError, match="scores must be finite, client 1 has nan"):
        sample_cohort(np.array([0, np.nan]), 1, rng=rng(1))
    with pytest.raises(ValueError, match=r"eligible must be bool \[4\], got int64"):
        sample_cohort(scores, 2, rng=rng(1), eligible=np.ones(4, dtype=np.int64))
    with pytest.raises(ValueError, match="only 1 of the k = 2 clients are eligible; give rest"):
        sample_cohort(scores, 2, rng=rng(1), eligible=np.arange(4) == 2)
