"""max_pool with ReLU and its gradient against torch: bound by one read and write of the images."""

import pytest
import torch
import torch.nn.functional as F

from c2v_sim.ops import max_pool


@pytest.mark.parametrize(("channels", "side"), [(32, 28), (64, 10)])
def test_max_pool(compare, channels, side):
    x = torch.randn(50, channels, side, side).to(memory_format=torch.channels_last)
    x.requires_grad_()
    dy = torch.ones(50, channels, side // 2, side // 2).to(memory_format=torch.channels_last)
    compare(
        lambda: torch.autograd.grad(max_pool(x, relu=True), x, dy),
        {"eager": lambda: torch.autograd.grad(F.relu(F.max_pool2d(x, 2)), x, dy)},
        bytes=2 * 4 * x.numel(),
    )
