"""Stacked convolutional networks against the lanes, against plain torch, and as recorded steps."""

import dataclasses
import functools
import importlib

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from backends import assert_as_good_as_torch
from cuda_stand_in import CudaStandIn
from federations import image_federation
from torch import nn

from c2v_sim import RunConfig, Simulator
from c2v_sim.models import build_model
from c2v_sim.system.errors import ConfigError
from c2v_sim.training.cohort import train_cohort
from c2v_sim.training.cuda_lane import CudaLane
from c2v_sim.training.lanes import LANES
from c2v_sim.training.stacked import choose_path, operations, train_stacked
from c2v_sim.training.stacked.networks import CannotStack, work_of
from c2v_sim.training.stacked.path import network_path

FEDERATION = image_federation(clients=6, smallest=1)  # 1, 8, 15, 22, 29 and 36 samples
SETTINGS = RunConfig(
    participation=1.0,
    local_epochs=2,
    batch_size=8,
    lr=0.02,
    momentum=0.9,
    weight_decay=0.05,
    seed=3,
    stacked="always",
    conv="torch",
    rounds=2,
)
MODELS = [("cnn", "batch"), ("resnet8", "group"), ("resnet8", "batch")]


def simulator(model="cnn", norm="batch", **changes):
    norms = {} if model == "cnn" else {"norm": norm}
    config = dataclasses.replace(SETTINGS, model=model, **norms, **changes)
    return Simulator(FEDERATION, config)


def trained(s, train, t=0):
    """Losses, rows and counts of batches of all clients."""
    s.training.cohort.data.fill_(torch.nan)
    s.training.cohort.integers.fill_(-1)
    losses = train(s.training, np.arange(6), t)
    cohort = s.training.cohort
    return losses, cohort.data.clone(), cohort.integers.clone()


@pytest.mark.parametrize(
    ("model", "norm", "momentum"), [("cnn", "", 0.0), *((*model, 0.9) for model in MODELS)]
)
def test_agrees_with_the_lanes(model, norm, momentum):
    s = simulator(model, norm, momentum=momentum, lanes=1)
    assert s.path.networks
    stacked, lanes = (trained(s, train) for train in (train_stacked, train_cohort))
    s.close()
    moved = (lanes[1] - s.server.data).abs().amax(dim=1)
    assert (moved > 1e-3).all(), "clients must train for the comparison to mean anything"
    torch.testing.assert_close(stacked[0], lanes[0], rtol=1e-3, atol=1e-4)
    # Rounding, but for clients of which a value lay so near 0 that ReLU passed it one way alone.
    difference = (stacked[1] - lanes[1]).abs().amax(dim=1)
    assert difference.median() < 1e-6
    assert (difference < 0.05 * moved).all()
    assert torch.equal(stacked[2], lanes[2])


@pytest.mark.parametrize(("model", "norm"), MODELS[::2])
def test_same_bits_for_any_number_of_lanes(model, norm):
    ends = []
    for lanes in (1, 3):
        s = simulator(model, norm, lanes=lanes, local_epochs=1)
        ends.append(trained(s, train_stacked))
        s.close()
    for one, three in zip(*ends, strict=True):
        assert torch.equal(one, three)


def test_a_resumed_run_has_the_same_bits():
    whole = simulator(rounds=2, lanes=2)
    rounds = whole.rounds()
    next(rounds)
    state = whole.state()
    state = {name: tensor.clone() for name, tensor in state.items()}
    next(rounds)
    again = simulator(rounds=2, lanes=1)
    again.load_state(1, state)
    next(again.rounds())
    assert torch.equal(whole.server.data, again.server.data)
    whole.close(), again.close()


@pytest.mark.parametrize(("model", "norm"), MODELS[::2])
def test_recorded_steps_have_the_same_bits(model, norm, monkeypatch):
    plain = simulator(model, norm, lanes=1, local_epochs=1)
    wanted = [trained(plain, train_stacked, t) for t in range(2)]
    plain.close()
    cuda = CudaStandIn()
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setitem(LANES, "cpu", functools.partial(CudaLane, cuda=cuda, runs_first=1))
    recorded = simulator(model, norm, lanes=1, local_epochs=1)
    got = [trained(recorded, train_stacked, t) for t in range(2)]
    assert sum(graph.replays for graph in cuda.graphs) > 10
    assert 0 < recorded.lanes.recorded <= 4  # of 3 clients each: few kinds of step
    recorded.close()
    for a, b in zip(got, wanted, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def filled(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("channels", "out", "taps", "stride", "padding", "side"),
    [
        (3, 8, 5, 1, 0, 9),
        (4, 6, 3, 2, 1, 8),
        (4, 6, 3, 2, 1, 7),
        (5, 7, 1, 2, 0, 6),
        (1, 1, 3, 1, 2, 3),
    ],
)
@pytest.mark.parametrize("bias", [True, False])
def test_convolution_is_that_of_every_client(channels, out, taps, stride, padding, side, bias):
    k, batch = 3, 4
    x, w, b = (
        filled(k * batch, channels, side, side),
        filled(k, out, channels, taps, taps),
        filled(k, out),
    )

    def gradients(f, dtype):
        leaves = [t.to(dtype).requires_grad_() for t in (x, w, b)]
        y = f(*leaves[:2], leaves[2] if bias else None)
        weights = torch.linspace(-1, 1, y.numel(), dtype=dtype).view(y.shape)
        grads = torch.autograd.grad((y * weights).sum(), leaves[: 3 if bias else 2])
        return [y.detach(), *grads]

    def each(x, w, b):
        parts = zip(x.chunk(k), w, [None] * k if b is None else b, strict=True)
        return torch.cat([F.conv2d(*part, stride=stride, padding=padding) for part in parts])

    def stacked(x, w, b):
        return operations.convolution(x, w, b, (stride, stride), (padding, padding))

    exact, torch32 = gradients(each, torch.float64), gradients(each, torch.float32)
    for got, t32, truth in zip(gradients(stacked, torch.float32), torch32, exact, strict=True):
        assert_as_good_as_torch(got, t32, truth)


def test_batch_norm_counts_only_real_samples():
    x, weight, bias = filled(6, 4, 3, 3), filled(2, 4, seed=1), filled(2, 4, seed=2)
    mean, variance = torch.zeros(2, 4), torch.ones(2, 4)
    real = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    y = operations.batch_norm(x, (mean, variance), weight, bias, 0.1, 1e-5, real)
    one = nn.BatchNorm2d(4)
    with torch.no_grad():
        one.weight.copy_(weight[0]), one.bias.copy_(bias[0])
    torch.testing.assert_close(y[:2], one(x[:2]).detach())
    torch.testing.assert_close(mean[0], one.running_mean)
    torch.testing.assert_close(variance[0], one.running_var)
    assert (mean[1] == 0).all()
    assert (variance[1] == 1).all()


class OfSamples(nn.Module):
    """`change` is applied to [B, 8] before the classifier."""

    def __init__(self, change):
        super().__init__()
        self.change, self.scale = change, nn.Parameter(torch.ones(8))
        self.classifier = nn.Linear(8, 3)

    def features(self, x):
        return self.change(self, x)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m, x: x * m.scale, "takes a parameter"),
        (lambda m, x: x.softmax(0), "it calls softmax"),
        (lambda m, x: F.relu(x).mean(0, keepdim=True) + x, "mean joins samples"),
        (lambda m, x: F.dropout(x, 0.5), "it has dropout 0.5"),
        (
            lambda m, x: F.linear(x, m.classifier.weight.T[:, :3] @ m.classifier.weight),
            "it calls|takes",
        ),
        (lambda m, x: F.relu(x).view(2, -1, 8).mean(1).repeat(2, 1), "joins samples|it calls"),
        (lambda m, x: F.batch_norm(x, None, None, training=True), "sees one number of each"),
    ],
)
def test_what_cannot_be_stacked_is_refused_with_the_reason(change, why):
    with pytest.raises(CannotStack, match=why):
        work_of(OfSamples(change), filled(2, 8))


def test_the_proof_does_not_need_the_native_operators(monkeypatch):
    cnn = build_model("cnn", classes=10, input_shape=(16, 16, 3), seed=0)
    plain = work_of(cnn, filled(2, 3, 16, 16))
    pool = importlib.import_module("c2v_sim.ops.layers.max_pool")
    monkeypatch.setattr(pool._operator, "choose", lambda *_: "torch")  # as on a GPU
    assert work_of(cnn, filled(2, 3, 16, 16)) == plain


def test_on_a_cpu_convolutions_are_stacked_only_where_that_is_wanted():
    s = simulator(stacked="auto")
    assert not s.path.stacked
    s.close()
    with pytest.raises(ConfigError, match=r"stacked = always.*images are augmented"):
        simulator(augment="crop-flip")
    with pytest.raises(ConfigError, match="the model cannot be stacked: it calls"):
        simulator("cct")


def test_a_gpu_stacks_what_would_leave_it_idle():
    x = filled(2, 3, 32, 32)
    cnn = build_model("cnn", classes=10, input_shape=(32, 32, 3), seed=0)
    small, large = (network_path(cnn, x, batch, faster=True) for batch in (20, 512))
    assert small.networks
    assert small.block == 32
    assert "a step of one client is 24.0 GFLOP, which keep a GPU busy" in large.why
    assert network_path(cnn, x, 512, faster=False).block == 13  # patches of 2 GiB
    s = simulator()
    path = choose_path(cnn, x, s.training.local, s.training.objective, 10, device="cuda")
    s.close()
    assert path.networks
    assert path.why == "a step of one client is 0.38 GFLOP, too few for a GPU"
