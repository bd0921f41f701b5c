"""depthwise_convolution with both gradients against torch's: bound by reading and writing images.

bench/mobilenet.py has all layers and the whole step of MobileNetV2.
"""

import pytest
import torch
import torch.nn.functional as F

from c2v_sim.ops import depthwise_convolution


@pytest.mark.parametrize(
    ("channels", "side", "stride"), [(32, 32, 1), (144, 16, 2), (384, 4, 1), (960, 2, 1)]
)
def test_depthwise_convolution(compare, channels, side, stride):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(32, channels, side, side, generator=g).to(memory_format=torch.channels_last)
    w = torch.randn(channels, 1, 3, 3, generator=g)
    leaves = [t.requires_grad_() for t in (x, w)]

    def plain():
        return F.conv2d(x, w, stride=stride, padding=1, groups=channels)

    dy = torch.ones_like(plain())
    compare(
        lambda: torch.autograd.grad(depthwise_convolution(x, w, stride=stride), leaves, dy),
        {"eager": lambda: torch.autograd.grad(plain(), leaves, dy)},
        bytes=4 * (3 * x.numel() + 2 * dy.numel()),
    )
