"""normalize with ReLU and its gradient against torch: bound by reading and writing the images.

bench/convolutions.py --steps has whole steps of residual networks, bench/mobilenet.py that of
MobileNetV2.
"""

import pytest
import torch
import torch.nn.functional as F

from c2v_sim.ops import normalize

RELU = float("inf")


@pytest.mark.parametrize("groups", [0, 2])
@pytest.mark.parametrize(("channels", "side"), [(16, 32), (64, 32), (64, 8), (256, 8)])
def test_normalize(compare, channels, side, groups):
    x = torch.randn(32, channels, side, side).to(memory_format=torch.channels_last)
    w, b = torch.ones(channels), torch.zeros(channels)
    leaves = [t.requires_grad_() for t in (x, w, b)]
    dy = torch.ones_like(x)

    def plain():
        if groups:
            return F.relu(F.group_norm(x, groups, w, b), inplace=True)
        return F.relu(F.batch_norm(x, None, None, w, b, True), inplace=True)

    def fused():
        return normalize(x, w, b, groups=groups, most=RELU)[0]

    compare(
        lambda: torch.autograd.grad(fused(), leaves, dy),
        {"eager": lambda: torch.autograd.grad(plain(), leaves, dy)},
        bytes=4 * 10 * x.numel(),  # 3 forward, 7 back
    )
