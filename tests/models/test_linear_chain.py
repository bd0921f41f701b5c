"""Chains of Linear and ReLU are recognised however they are written, and nothing else is."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from c2v_sim.models.linear_chain import Layer, NoChain, linear_chain
from c2v_sim.models.split import split

X = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))


def layers(*middle, first=12):
    return nn.Sequential(nn.Flatten(), nn.Linear(first, 8), *middle, nn.Linear(8, 3))


class Written(nn.Module):
    """The layers in another order than they are used in, and calls instead of modules."""

    def __init__(self, way="view"):
        super().__init__()
        self.way, self.last, self.first = way, nn.Linear(8, 3), nn.Linear(12, 8, bias=False)

    def forward(self, x):
        x = {
            "view": lambda: x.view(x.size(0), -1),
            "reshape": lambda: x.reshape(len(x), -1),
            "flat": lambda: torch.flatten(x, 1),
            "rows": lambda: x.view(-1, 12),
        }[self.way]()
        return self.last(F.relu(F.linear(x, self.first.weight)))


@pytest.mark.parametrize("way", ["view", "reshape", "flat", "rows"])
def test_a_class_of_ones_own(way):
    model = split(Written(way), X)
    found = linear_chain(model, X)
    assert found == (
        Layer("whole.first.weight", None, relu=True),
        Layer("classifier.weight", "classifier.bias"),
    )


@pytest.mark.parametrize(
    ("model", "relu"),
    [
        (layers(nn.ReLU()), [True, False]),
        (layers(), [False, False]),
        (layers(nn.ReLU(inplace=True), nn.Dropout(0.0), nn.Identity()), [True, False]),
        (layers(nn.Sequential(nn.ReLU(), nn.Linear(8, 8), nn.ReLU())), [True, True, False]),
    ],
)
def test_sequences(model, relu):
    found = linear_chain(split(model, X), X)
    assert [layer.relu for layer in found] == relu


class Skip(Written):
    def forward(self, x):
        h = self.first(x.flatten(1)).relu()
        return self.last(h + h)


class Detached(Written):
    def forward(self, x):
        with torch.no_grad():
            h = self.first(x.flatten(1)).relu()
        return self.last(h)


class Looking(Written):
    def forward(self, x):
        h = self.first(x.flatten(1)).relu()
        return self.last(h) if x.sum() > 0 else h[:, :3]


def hooked():
    model = layers(nn.ReLU())
    model[1].register_forward_hook(lambda *_: None)
    return model


def twice():
    shared = nn.Linear(8, 8)
    return layers(shared, nn.ReLU(), shared)


def frozen():
    model = layers(nn.ReLU())
    model[1].bias.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (layers(nn.Tanh()), "it calls tanh"),
        (layers(nn.Dropout(0.5)), "it has dropout 0.5"),
        (layers(nn.BatchNorm1d(8)), "its part whole.2 is a BatchNorm1d"),
        (nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(12, 3)), "ReLU comes before"),
        (nn.Sequential(nn.Linear(4, 5), nn.Flatten(), nn.Linear(15, 3)), r"takes \[2, 3, 4\]"),
        (Skip(), "it calls add|it calls __add__"),
        (Detached(), "no gradient reaches|it calls"),
        (Looking(), "it calls sum"),
        (hooked(), "its part whole.1 has hooks"),
        (twice(), "whole.2.weight is used twice"),
        (frozen(), "its parameter whole.1.bias is frozen"),
    ],
)
def test_why_something_is_no_chain(model, why):
    with pytest.raises(NoChain, match=why):
        linear_chain(split(model, X), X)
