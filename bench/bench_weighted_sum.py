"""weighted_sum against `weights @ arena`: bound by one read of the arena."""

import pytest
import torch

from c2v_sim.ops import weighted_sum


@pytest.mark.parametrize("size", [60_000, 1_000_000, 11_000_000])
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_weighted_sum(compare, backend, size):
    g = torch.Generator().manual_seed(0)
    arena, weights = torch.randn(10, size, generator=g), torch.rand(10, generator=g)
    out = torch.empty(size)
    compare(
        lambda: weighted_sum(arena, weights, out, backend=backend),
        {"eager": lambda: torch.mv(arena.T, weights, out=out)},
        bytes=4 * size * (10 + 1),
    )
