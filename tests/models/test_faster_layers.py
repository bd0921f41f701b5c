"""Layers that are taken over do what torch's do in networks as users write them."""

import copy

import pytest
import torch
from torch import nn

from c2v_sim.models.faster.layers import take_over_layers

CHANNELS, SIDE = 16, 12
LAYERS = {
    "convolution": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
    "convolution of stride 2": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, 2, padding=1, bias=False),
    "of each channel": lambda: nn.Conv2d(
        CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS, bias=False
    ),
    "batch norm": lambda: nn.BatchNorm2d(CHANNELS),
    "group norm": lambda: nn.GroupNorm(2, CHANNELS),
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(CHANNELS * SIDE**2, 512)),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_relu_in_place(layer):
    torch.manual_seed(0)
    plain = nn.Sequential(LAYERS[layer](), nn.ReLU(inplace=True))
    ours = copy.deepcopy(plain)
    take_over_layers(ours)
    x = torch.randn(16, CHANNELS, SIDE, SIDE)
    results = []
    for network in (ours, plain):
        leaf = x.clone().requires_grad_()
        y = network(leaf)
        y.square().mean().backward()
        results.append([y.detach(), leaf.grad, *(p.grad for p in network.parameters())])
    for a, b in zip(*results, strict=True):
        assert (a - b).norm() <= 1e-4 * b.norm()
