"""Steps within the backward pass have the bits of a step after it."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from c2v_sim import Federation, RunConfig, Simulator
from c2v_sim.training import at_once


class Odd(nn.Module):
    """Convolutions of both memory formats, a layer that is used twice, one that is not used."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 5, 3)
        self.norm = nn.BatchNorm2d(5)
        self.second = nn.Conv2d(5, 7, 1)
        self.middle = nn.Linear(7, 7)
        self.idle = nn.Linear(3, 3)
        self.classifier = nn.Linear(7, 3)

    def features(self, x):
        x = F.relu(self.norm(self.first(x)))
        x = self.second(x).mean((2, 3))
        return self.middle(F.relu(self.middle(x)))


def federation():
    g = np.random.default_rng(0)
    x = g.integers(0, 256, (60, 8, 8, 3), dtype=np.uint8)
    return Federation.from_arrays(x, np.arange(60) % 3, np.arange(60) % 4, test_fraction=0.2)


def simulator(lanes=1, model=None, **changes):
    settings = {"rounds": 2, "batch_size": 5, "participation": 1.0, "lr": 0.1, "weight_decay": 0.01}
    config = RunConfig(**settings | changes, lanes=lanes, stacked="never", eval_every=2)
    torch.manual_seed(0)
    return Simulator(federation(), config, model=model or Odd())


def trained(**changes):
    made = simulator(**changes)
    for _ in made.rounds():
        pass
    made.close()
    return made


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("lanes", [1, 2])
def test_the_bits_are_those_of_a_step_after_the_backward_pass(monkeypatch, momentum, lanes):
    after = trained(momentum=momentum)
    monkeypatch.setattr(at_once, "FEWEST", 1)
    within = trained(momentum=momentum, lanes=lanes)
    assert within.training.at_once
    assert not after.training.at_once
    assert torch.equal(within.server.data, after.server.data)
    start = simulator().server.data
    assert not torch.equal(within.server.data, start)
    idle = next(s for s in within.layout.parameters if s.name.endswith("idle.weight"))
    assert not torch.equal(idle.view(within.server.data[0]), idle.view(start[0]))  # it decays


def test_no_row_of_gradients_is_made(monkeypatch):
    assert trained().lanes._lanes[0].client.model._gradients is not None
    monkeypatch.setattr(at_once, "FEWEST", 1)
    assert trained().lanes._lanes[0].client.model._gradients is None


@pytest.mark.parametrize(
    "changes", [{"algorithm": "fedprox"}, {"algorithm": "feddyn"}, {"algorithm": "scaffold"}]
)
def test_what_adds_to_the_gradient_keeps_the_row(monkeypatch, changes):
    monkeypatch.setattr(at_once, "FEWEST", 1)
    assert not simulator(**changes).training.at_once


class ReadsLate(Odd):
    """Its backward pass needs a weight when the gradient of that has long been complete."""

    def features(self, x):
        x = self.second(F.relu(self.first(x))).mean((2, 3))
        return self.middle(F.linear(x, self.middle.weight.detach()))


@pytest.mark.parametrize(("network", "wanted"), [(Odd, True), (ReadsLate, False)])
def test_a_network_that_reads_a_weight_late_keeps_the_row(monkeypatch, network, wanted):
    monkeypatch.setattr(at_once, "FEWEST", 1)
    made = simulator(model=network())
    assert made.training.at_once is wanted
    next(made.rounds())
    made.close()
