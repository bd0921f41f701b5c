"""Indices with noise: the noise that a stated (ε, δ) asks for, where it goes, and what it costs."""

import numpy as np
import pytest
import torch
from planted import planted

from c2v_sim.config import make_config
from c2v_sim.index.build import build_index
from c2v_sim.index.config import IndexConfig
from c2v_sim.index.naive.private import gaussian_sigma, shortened
from c2v_sim.system.errors import ConfigError


# Of dp-accounting 0.6.0: pld.accountant.get_smallest_gaussian_noise, one query. It asks for attrs
# < 24, for which reason it is no dependency.
@pytest.mark.parametrize(
    ("epsilon", "delta", "sensitivity", "sigma"),
    [
        (1, 1e-5, 1, 3.730631664679545),
        (0.1, 1e-5, 2, 61.4991322671556),
        (8, 1e-5, 2**0.5, 0.8488520949802312),
        (2, 1e-3, 1, 1.445239207959573),
    ],
)
def test_sigma_is_that_of_an_accounting_library(epsilon, delta, sensitivity, sigma):
    assert gaussian_sigma(epsilon, delta, sensitivity) == pytest.approx(sigma, rel=1e-6)


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-3, 1e-12), (1e6, 1e-12), (1e6, 0.999)])
def test_the_ends_of_the_ranges_have_a_sigma(epsilon, delta):
    assert 0 < gaussian_sigma(epsilon, delta, 1.0) < 1e5


@pytest.fixture(scope="module")
def made():
    return planted(clients_per_domain=2, samples=40, domains=3, classes=4)


def built(made, kind, **settings):
    federation, images, labels = made
    return build_index(federation, IndexConfig(index=kind, **settings), embeddings=(images, labels))


def test_the_noise_of_the_sums(made):
    """What is added to N_i v_i has the σ of (ε, δ) and of the sensitivity."""
    sizes = torch.full((6, 1), 40.0)
    plain = built(made, "centred-average").feature
    noisy = built(made, "private-average", epsilon=2.0, delta=1e-4).feature
    left = ((noisy - plain) * sizes).double()  # noise, less its mean over the six clients
    sigma = left.std().item() * (6 / 5) ** 0.5
    assert sigma == pytest.approx(gaussian_sigma(2.0, 1e-4, 2.0), rel=0.05)
    counts = made[0].label_counts.double()
    histogram = built(made, "private-histogram", epsilon=500.0).label.double() * 40
    drawn = np.stack([np.random.default_rng([0, 10, i, 4]).standard_normal(4) for i in range(6)])
    expected = counts + gaussian_sigma(500.0, 1e-5, 2**0.5) * torch.from_numpy(drawn)
    torch.testing.assert_close(histogram, expected.clamp(min=0), atol=1e-4, rtol=1e-4)


def test_less_privacy_less_noise_and_the_seed_decides(made):
    plain = built(made, "label-histogram").label
    far, near = (
        (built(made, "private-histogram", epsilon=e).label - plain).norm() for e in (0.5, 50.0)
    )
    assert near < far / 10
    one, same, other = (built(made, "private-average", seed=s).feature for s in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_long_embeddings_are_shortened():
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    torch.testing.assert_close(shortened(rows), torch.tensor([[0.6, 0.8], [0.3, 0.4]]))


def test_a_budget_for_an_index_without_noise_is_refused():
    given = {"improve": ["sampling"], "index": "random", "index_epsilon": 3.0}
    with pytest.raises(ConfigError, match=r"index_epsilon = 3.0 has no effect with index = random"):
        make_config(given)
    assert make_config(given | {"index": "private-average"}).index_epsilon == 3.0
