"""projection_orthogonality, forward and backward, against eager torch."""

import pytest
import torch
import torch.nn.functional as F

from c2v_sim.ops import projection_orthogonality


@pytest.mark.parametrize("clients", [100, 1000, 10_000])
def test_projection_orthogonality(compare, clients):
    g = torch.Generator().manual_seed(0)
    z_p = torch.randn(128, 512, generator=g).requires_grad_()
    index = torch.randn(clients, 512, generator=g)

    def eager():
        return (F.normalize(z_p) @ F.normalize(index).T).abs().mean()

    compare(
        lambda: torch.autograd.grad(projection_orthogonality(z_p, index), z_p),
        {"eager": lambda: torch.autograd.grad(eager(), z_p)},
        flops=2 * 128 * clients * 512 * 2,
    )
