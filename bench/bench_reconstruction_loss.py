"""reconstruction_loss, forward and backward, against torch's mse_loss: bound by memory."""

import pytest
import torch
import torch.nn.functional as F

from c2v_sim.ops import reconstruction_loss


@pytest.mark.parametrize("batch", [128, 8192])
def test_reconstruction_loss(compare, batch):
    g = torch.Generator().manual_seed(0)
    d_hat, d = torch.randn(2, batch, 512, generator=g)
    d_hat.requires_grad_()
    compare(
        lambda: torch.autograd.grad(reconstruction_loss(d_hat, d), d_hat),
        {"eager": lambda: torch.autograd.grad(F.mse_loss(d_hat, d), d_hat)},
        bytes=4 * 512 * batch * 3,
        rounds=30,
    )
