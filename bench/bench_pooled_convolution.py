"""pooled_convolution with its gradients against torch's three; the layers of the built-in cnn."""

import pytest
import torch
import torch.nn.functional as F

from c2v_sim.ops import pooled_convolution


@pytest.mark.parametrize(("channels", "filters", "side"), [(3, 32, 32), (32, 64, 14)])
def test_pooled_convolution(compare, channels, filters, side):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(50, channels, side, side, generator=g)
    w = torch.randn(filters, channels, 5, 5, generator=g)
    x, w = (t.to(memory_format=torch.channels_last) for t in (x, w))
    leaves = [w.requires_grad_()] if channels == 3 else [x.requires_grad_(), w.requires_grad_()]
    dy = torch.ones_like(pooled_convolution(x, w))
    flops = 2 * F.conv2d(x, w).numel() * channels * 25 * (1 + len(leaves))
    compare(
        lambda: torch.autograd.grad(pooled_convolution(x, w), leaves, dy),
        {"eager": lambda: torch.autograd.grad(F.max_pool2d(F.conv2d(x, w).relu(), 2), leaves, dy)},
        flops=flops,
    )
