"""projection_orthogonality, forward and backward, against eager torch."""

import pytest
import torch
import torch.nn.functional as F

from c2v_sim.ops import prepared_index, projection_orthogonality


@pytest.mark.parametrize("form", ["unit", "cosine"])
@pytest.mark.parametrize("clients", [100, 1000, 10_000])
def test_projection_orthogonality(compare, clients, form):
    g = torch.Generator().manual_seed(0)
    z_p = torch.randn(128, 512, generator=g).requires_grad_()
    index = torch.randn(clients, 512, generator=g)

    prepared, unit = prepared_index(index, form), F.normalize(index)

    def fused():
        return projection_orthogonality(z_p, prepared, form)

    def eager():
        return ((F.normalize(z_p) if form == "cosine" else z_p) @ unit.T).abs().mean()

    compare(
        lambda: torch.autograd.grad(fused(), z_p),
        {"eager": lambda: torch.autograd.grad(eager(), z_p)},
        flops=2 * 128 * clients * 512 * 2,
    )
