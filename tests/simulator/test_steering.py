"""Case studies i and ii: who is drawn, and how much each counts."""

import itertools
import math

import numpy as np
import pytest
import torch
from federations import image_federation, index_of, made_up_index, simulator_with
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import chisquare

from c2v_sim import RunConfig, Simulator
from c2v_sim.simulator.steering import NEVER, Steering


def steering(clients, k, *, seed=0, tau=0.5, gamma=0.5, lambda1=1.0, index_seed=0, **parts):
    g = torch.Generator().manual_seed(index_seed)
    feature = parts.get("feature", torch.randn(clients, 5, generator=g))
    label = parts.get("label", torch.randn(clients, 3, generator=g))
    sizes = np.arange(clients) * 3 + 2
    improve = ("sampling", "aggregation")
    return Steering(
        feature, label, sizes, k, improve, seed=seed, tau=tau, gamma=gamma, lambda1=lambda1
    )


def similarity(s):
    """A, as a whole."""
    parts = [part.double() for part in (s.feature, s.label) if part is not None]
    units = [part / part.norm(dim=1, keepdim=True) for part in parts]
    return sum(u @ u.T for u in units) / len(units)


def omega(s, cohort):
    out = torch.zeros(len(s.sizes), dtype=torch.float64)
    out[cohort] = torch.from_numpy(s.sizes[cohort] / s.sizes[cohort].sum())
    return out


def play(s, rounds):
    """The cohorts of so many rounds."""
    cohorts = []
    for t in range(1, rounds + 1):
        cohorts.append(s.cohort(t))
        s.finish(t, cohorts[-1], *s.similarity_to(cohorts[-1]))
    return cohorts


def probability(cohort, p):
    """Of drawing exactly this set, one after the other without putting back."""
    total = 0.0
    for order in itertools.permutations(cohort):
        left, product = 1.0, 1.0
        for i in order:
            product *= p[i] / left
            left -= p[i]
        total += product
    return total


@pytest.mark.parametrize(("clients", "k", "tau"), [(5, 1, 0.3), (5, 2, 0.3), (7, 3, 0.3)])
def test_cohorts_come_as_often_as_successive_draws_by_similarity(clients, k, tau):
    s = steering(clients, k, tau=tau)
    first = s.cohort(1)
    s.finish(1, first, *s.similarity_to(first))
    scores = (similarity(s) @ omega(s, first)).numpy()
    rested = [i for i in range(clients) if i not in first]
    p = {i: math.exp(scores[i] / tau) for i in rested}
    p = {i: v / sum(p.values()) for i, v in p.items()}
    sets = list(itertools.combinations(rested, k))
    counts, draws = dict.fromkeys(sets, 0), 4000
    for seed in range(draws):
        s.seed = seed
        counts[tuple(s.cohort(2).tolist())] += 1  # fails for a client that must rest
    expected = [draws * probability(c, p) for c in sets]
    assert chisquare(list(counts.values()), expected).pvalue > 1e-3
    uniform = [draws / len(sets)] * len(sets)
    assert chisquare(list(counts.values()), uniform).pvalue < 1e-9


def test_the_first_cohort_is_the_uniform_one():
    federation = image_federation()
    for seed in range(20):
        plain, steered = (
            simulator_with(federation, RunConfig(seed=seed, participation=0.5, **more))
            for more in ({}, {"improve": ("sampling",)})
        )
        assert plain._choose(1).clients.tolist() == steered._choose(1).clients.tolist()


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 60),
    st.floats(0.01, 1.0),
    st.integers(0, 1000),
    st.sampled_from([1e-9, 0.1, 2.0]),
)
def test_nobody_returns_before_the_rest_is_over(clients, share, seed, tau):
    k = max(1, int(share * clients))
    s = steering(clients, k, seed=seed, tau=tau, index_seed=seed)
    last = {}
    for t, cohort in enumerate(play(s, 25), start=1):
        assert len(set(cohort.tolist())) == k
        assert cohort.tolist() == sorted(cohort.tolist())
        for i in cohort.tolist():
            assert t - last.get(i, -math.inf) > clients // (2 * k)
            last[i] = t
    assert s.last.tolist() == [last.get(i, NEVER) for i in range(clients)]


def test_too_few_that_have_rested_are_joined_by_those_who_rested_longest():
    s = steering(9, 2)  # rest: 2 rounds
    assert s.rest == 2
    s.last.copy_(torch.tensor([10, 9, 9, 10, NEVER, 9, 10, 10, 9]))
    assert s.cohort(11).tolist() == [1, 4]  # 4 has rested; of 1, 2, 5, 8 the lower id
    s.last[4] = 9
    assert s.cohort(11).tolist() == [1, 2]
    s.last[8] = 8
    assert s.cohort(11).tolist() == [1, 8]  # 8 may: 11 - 8 > 2
    s.last[:] = 5
    assert s.cohort(11).tolist() == steering(9, 2).cohort(11).tolist()


def test_the_recursion_is_the_sum_over_all_rounds():
    s = steering(12, 3, gamma=0.7)
    cohorts = play(s, 9)
    A = similarity(s)
    explicit = sum(0.7 ** (9 - t) * (A @ omega(s, c)) for t, c in enumerate(cohorts, start=1))
    torch.testing.assert_close(s.history, explicit, rtol=0, atol=1e-6)
    torch.testing.assert_close(s.scores, A @ omega(s, cohorts[-1]), rtol=0, atol=1e-6)
    assert s.history.abs().max() <= 1 / (1 - 0.7)


def test_looking_changes_nothing():
    s = steering(6, 2)
    play(s, 2)
    before = {name: t.clone() for name, t in s.state().items()}
    scores, history = s.similarity_to(s.cohort(3))
    s.weights(np.array([0, 1]), history, torch.tensor([1, 2]))
    assert all(torch.equal(t, before[name]) for name, t in s.state().items())
    assert not torch.equal(scores, before["scores"])


@pytest.mark.parametrize("lambda1", [0.2, 1.0])
def test_weights_are_what_an_optimiser_finds_for_the_papers_objective(lambda1):
    s = steering(10, 4, lambda1=lambda1, gamma=0.5)
    cohorts = play(s, 3)
    cohort = s.cohort(4)
    A = similarity(s).numpy()
    history = [*(omega(s, c).numpy() for c in cohorts), omega(s, cohort).numpy()]
    q = s.sizes[cohort] / s.sizes[cohort].sum()

    def negative(p):
        likeness = sum(
            p[i] * 0.5 ** (3 - t) * A[cohort[i], j] * o[j]
            for i in range(4)
            for t, o in enumerate(history)
            for j in range(10)
        )
        return -(likeness - lambda1 * (p * np.log(p / q)).sum())

    sums_to_one = {"type": "eq", "fun": lambda p: p.sum() - 1}
    found = minimize(
        negative, q, bounds=[(1e-9, 1)] * 4, constraints=sums_to_one, options={"ftol": 1e-12}
    )
    assert found.success
    _, H = s.similarity_to(cohort)
    p = s.weights(cohort, H, torch.from_numpy(s.sizes[cohort])).numpy()
    assert p == pytest.approx(found.x, abs=1e-4)
    assert abs(p - q).max() > 1e-2


def run_weights(algorithm, lambda1):
    """Cohorts, weights and histories of a run with case study ii."""
    federation = image_federation(clients=6)
    config = RunConfig(
        algorithm=algorithm, model="linear", rounds=3, participation=0.5, local_epochs=1, lr=1e-3,
        improve=("aggregation",), lambda1=lambda1, seed=2,
    )  # fmt: skip
    simulator = Simulator(federation, config, index=made_up_index(federation))
    records = simulator.run().records
    simulator.close()
    return federation.partition.sizes, records


@pytest.mark.parametrize("algorithm", ["fedavg", "feddyn"])
def test_an_infinite_lambda_gives_the_prior(algorithm):
    for lambda1 in (math.inf, 1e9):
        sizes, records = run_weights(algorithm, lambda1)
        for record in records:
            q = sizes[record.cohort] / sizes[record.cohort].sum()
            wanted = q if algorithm == "fedavg" else np.full(3, 1 / 3)
            assert record.weights == pytest.approx(wanted, abs=2e-9)


@pytest.mark.parametrize("algorithm", ["fedavg", "feddyn"])
def test_a_tiny_lambda_gives_all_to_the_largest_history(algorithm):
    for record in run_weights(algorithm, 1e-9)[1]:
        history = np.array(record.history)[record.cohort]
        assert record.weights == (history == history.max()).astype(float).tolist()


def test_between_the_limits_history_and_prior_both_count():
    sizes, records = run_weights("fedavg", 0.5)
    for record in records:
        history = np.array(record.history)[record.cohort]
        wanted = sizes[record.cohort] * np.exp(history / 0.5)
        assert record.weights == pytest.approx(wanted / wanted.sum(), abs=1e-5)


def test_without_a_history_the_first_weights_are_those_of_the_first_cohort_alone():
    s = steering(8, 3)
    assert not s.history.any()
    cohort = s.cohort(1)
    scores, history = s.similarity_to(cohort)
    assert torch.equal(scores, history)
    # self-similarity is kept: a cohort of one is as alike to itself as can be
    alone, _ = s.similarity_to(np.array([5]))
    assert alone[5].item() == pytest.approx(1.0, abs=1e-6)


def test_clients_that_are_all_alike_are_drawn_and_weighted_as_without_an_index():
    same = torch.ones(8, 4)
    s = steering(8, 4, feature=same, label=None)  # rest: 1 round
    cohort = s.cohort(1)
    scores, history = s.similarity_to(cohort)
    assert scores.tolist() == pytest.approx([1.0] * 8)
    p = s.weights(cohort, history, torch.from_numpy(s.sizes[cohort]))
    assert p.numpy() == pytest.approx(s.sizes[cohort] / s.sizes[cohort].sum())
    s.finish(1, cohort, scores, history)
    noise = np.random.default_rng([0, 2, 2]).gumbel(size=8)
    noise[cohort] = -np.inf
    assert s.cohort(2).tolist() == sorted(np.argsort(-noise)[:4].tolist())


def test_zero_vectors_are_alike_to_nobody_and_stay_eligible():
    s = steering(8, 2, feature=torch.zeros(8, 4), label=torch.zeros(8, 2))
    cohorts = play(s, 30)
    assert not s.history.any()
    assert {i for c in cohorts for i in c.tolist()} == set(range(8))
    p = s.weights(cohorts[0], s.history, torch.from_numpy(s.sizes[cohorts[0]]))
    assert p.numpy() == pytest.approx(s.sizes[cohorts[0]] / s.sizes[cohorts[0]].sum())


def test_one_zero_vector_among_others():
    feature = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
    feature[3] = 0
    s = steering(8, 2, feature=feature, label=None, tau=0.05)
    cohorts = play(s, 40)
    assert any(3 in c for c in cohorts)
    assert s.scores[3] == 0
    assert s.history.isfinite().all()


def test_a_part_that_is_left_out_does_not_halve_the_other():
    federation = image_federation(clients=6)
    index = made_up_index(federation)
    alone = index_of(federation, index.feature, torch.zeros(6, 0))
    for given_index, part in ((index, "feature"), (alone, "both")):
        config = RunConfig(improve=("sampling",), index_part=part, participation=0.2)
        simulator = Simulator(federation, config, index=given_index)
        scores, _ = simulator.steering.similarity_to(np.array([4]))
        assert scores[4].item() == pytest.approx(1.0, abs=1e-6)
        wanted = torch.nn.functional.cosine_similarity(index.feature, index.feature[4:5])
        torch.testing.assert_close(scores.float(), wanted)
