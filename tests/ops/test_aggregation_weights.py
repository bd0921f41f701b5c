import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from c2v_sim.ops import aggregation_weights


def problem(k, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.rand(k, generator=g) * 4 - 2, torch.randint(1, 500, (k,), generator=g)


def test_is_the_formula():
    history, sizes = problem(7)
    q = sizes.double() / sizes.sum()
    want = q * (history.double() / 0.7).exp()
    torch.testing.assert_close(aggregation_weights(history, sizes, 0.7), want / want.sum())


def test_infinite_lambda_gives_the_prior():
    history, sizes = problem(10)
    q = sizes.double() / sizes.sum()
    assert torch.equal(aggregation_weights(history, sizes, math.inf), q)
    torch.testing.assert_close(aggregation_weights(history, sizes, 1e12), q)


@pytest.mark.parametrize("lambda1", [1e-6, 1e-300, 5e-324])
def test_tiny_lambda_gives_the_largest_history(lambda1):
    history, sizes = problem(10)
    p = aggregation_weights(history, sizes, lambda1)
    assert torch.equal(p, torch.nn.functional.one_hot(history.argmax(), 10).double())
    shared = aggregation_weights(torch.tensor([2.0, 1.0, 2.0]), torch.tensor([1, 9, 3]), lambda1)
    torch.testing.assert_close(shared, torch.tensor([0.25, 0.0, 0.75], dtype=torch.float64))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 30), st.integers(0, 10_000), st.floats(1e-12, 1e12), st.floats(-1e30, 1e30))
def test_sums_to_one_permutes_and_ignores_a_shift(k, seed, lambda1, shift):
    history, sizes = problem(k, seed)
    p = aggregation_weights(history, sizes, lambda1)
    assert (p >= 0).all()
    assert p.sum().item() == pytest.approx(1.0, abs=1e-12)
    order = torch.randperm(k, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(aggregation_weights(history[order], sizes[order], lambda1), p[order])
    moved = aggregation_weights(torch.full((k,), shift), sizes, lambda1)
    torch.testing.assert_close(moved, sizes.double() / sizes.sum())


def test_maximises_the_papers_objective():
    history, sizes = problem(6)
    q, h = sizes.double() / sizes.sum(), history.double()

    def objective(p):
        return (p * h).sum() - 0.5 * (p * (p / q).log()).sum()

    best = aggregation_weights(history, sizes, 0.5)
    g = torch.Generator().manual_seed(1)
    for _ in range(200):
        other = (best.log() + 0.1 * torch.randn(6, generator=g).double()).softmax(0)
        assert objective(other) <= objective(best) + 1e-12


def test_edges():
    one = torch.tensor([3.0])
    for lambda1 in (1e-9, 1.0, math.inf):
        assert aggregation_weights(one, torch.tensor([17]), lambda1).tolist() == [1.0]
    empty = aggregation_weights(torch.tensor([9.0, 1.0, 1.0]), torch.tensor([0, 5, 5]), 1e-9)
    assert empty.tolist() == [0.0, 0.5, 0.5]
    bad = torch.tensor([float("nan"), 1.0])
    for lambda1 in (1.0, math.inf):
        assert aggregation_weights(bad, torch.tensor([1, 1]), lambda1).isnan().any()
    assert aggregation_weights(bad, torch.tensor([1, 1]), 1.0).isnan().all()


def test_refusals_name_what_was_wrong():
    history, sizes = problem(3)
    with pytest.raises(ValueError, match=r"got \(3,\) and \(2,\)"):
        aggregation_weights(history, sizes[:2], 1.0)
    with pytest.raises(ValueError, match="k >= 1"):
        aggregation_weights(history[:0], sizes[:0], 1.0)
    for bad in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="lambda1 must be > 0"):
            aggregation_weights(history, sizes, bad)
