"""convolution against torch's, forward; bench/convolutions.py has all layers, gradients, errors."""

import pytest
import torch
import torch.nn.functional as F

from c2v_sim.ops import convolution


@pytest.mark.parametrize(
    ("batch", "channels", "filters", "side", "taps"),
    [(50, 32, 64, 14, 5), (25, 64, 64, 32, 3), (25, 256, 256, 8, 3)],
)
def test_convolution(compare, batch, channels, filters, side, taps):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(batch, channels, side, side, generator=g)
    w = torch.randn(filters, channels, taps, taps, generator=g)
    x, w = (t.to(memory_format=torch.channels_last) for t in (x, w))
    flops = 2 * F.conv2d(x, w).numel() * channels * taps * taps
    compare(lambda: convolution(x, w), {"eager": lambda: F.conv2d(x, w)}, flops=flops)
