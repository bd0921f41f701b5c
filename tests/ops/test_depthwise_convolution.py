"""depthwise_convolution against torch's in float64: values, gradients, shapes, refusals."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from backends import assert_as_good_as_torch
from torch import nn

from c2v_sim.models.faster.layers import ConvolveEach, take_over_layers
from c2v_sim.ops._dispatch import native_missing
from c2v_sim.ops.layers.depthwise_convolution import (
    depthwise_convolution,
    depthwise_convolution_backward_torch,
)

native = pytest.mark.skipif(native_missing is not None, reason=str(native_missing))
FOLDERS = (Path(__file__).parent, Path(__file__).parents[1] / "support")
SIDES = [(1, 1), (1, 5), (2, 2), (3, 2), (4, 4), (5, 6), (7, 9), (8, 1)]


def problem(n, channels, sides, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, channels, *sides, generator=g), torch.randn(
        channels, 1, 3, 3, generator=g
    )


def results(x, w, stride, backend):
    """y, dx, dw for an upstream that depends on shapes alone."""
    x, w = (t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in (x, w))
    y = depthwise_convolution(x, w, stride=stride, backend=backend)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    y.backward(dy.to(y.dtype))
    return y.detach(), x.grad, w.grad


def check(x, w, stride):
    exact = results(x.double(), w.double(), stride, "torch")
    ours, torchs = (results(x, w, stride, backend) for backend in ("native", "torch"))
    for name, a, b, c in zip(("y", "dx", "dw"), ours, torchs, exact, strict=True):
        # Few terms may round to nothing in torch's order: one unit of their size is allowed.
        assert_as_good_as_torch(a, b, c, name, atol=2e-6)


@native
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels", [1, 7, 8, 15, 16, 17, 33])
def test_values_and_gradients_at_all_edges(stride, channels):
    for sides in SIDES:
        check(*problem(3, channels, sides), stride)


@native
@pytest.mark.parametrize(("n", "channels", "side"), [(32, 32, 32), (32, 960, 2), (2, 16, 130)])
@pytest.mark.parametrize("stride", [1, 2])
def test_whole_layers_and_images_of_several_bands(stride, n, channels, side):
    x, w = problem(n, channels, (side, side + 1))
    exact = results(x.double(), w.double(), stride, "torch")
    ours, torchs = (results(x, w, stride, backend) for backend in ("native", "torch"))
    for a, b, c in zip(ours, torchs, exact, strict=True):
        assert (a - c).norm() <= 2 * (b - c).norm() + 1e-7 * c.norm()


@native
@pytest.mark.parametrize("stride", [1, 2])
def test_tensors_that_are_not_contiguous(stride):
    x, w = problem(2, 16, (6, 6))
    want = results(x, w, stride, "native")
    other = torch.stack([x, -x], dim=-1)[..., 0], w.transpose(2, 3).contiguous().transpose(2, 3)
    for a, b in zip(results(*other, stride, "native"), want, strict=True):
        assert torch.equal(a, b)


@native
def test_bits_do_not_depend_on_the_kind_of_vectors():
    """Channels are apart in both, so a CPU without AVX-512 has the same bits."""
    code = """
import sys, torch
sys.path[:0] = sys.argv[1:]
from test_depthwise_convolution import problem, results
print(sum(t.double().sum().item() * (i + 1) for s in (1, 2) for i, t in
      enumerate(results(*problem(3, 33, (7, 9)), s, "native"))).hex())
"""
    said = []
    for capability in ("avx2", "avx512"):
        command = [sys.executable, "-P", "-c", code, *(str(p) for p in FOLDERS)]
        environment = os.environ | {"ATEN_CPU_CAPABILITY": capability}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert said[0] == said[1]


@native
def test_only_the_gradients_that_are_needed_and_a_second_derivative():
    x, w = problem(2, 8, (5, 5))
    for needed in [(True, False), (False, True)]:
        leaves = [t.clone().requires_grad_(n) for t, n in zip((x, w), needed, strict=True)]
        depthwise_convolution(*leaves, backend="native").sum().backward()
        assert tuple(leaf.grad is not None for leaf in leaves) == needed
    leaves = [t.requires_grad_() for t in (x, w)]

    def twice(backend):
        loss = depthwise_convolution(*leaves, stride=2, backend=backend).square().sum()
        (grad,) = torch.autograd.grad(loss, leaves[1], create_graph=True)
        return torch.autograd.grad(grad.square().sum(), leaves)

    for a, b in zip(twice("native"), twice("torch"), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3 * b.abs().max().item())


def test_the_reference_passes_gradcheck():
    x, w = (t.double().requires_grad_() for t in problem(2, 2, (4, 5)))
    torch.autograd.gradcheck(
        lambda *a: depthwise_convolution(*a, stride=2, backend="torch"), (x, w)
    )
    dy = torch.randn(2, 2, 2, 3, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(
        lambda *a: depthwise_convolution_backward_torch(*a, 2, True, True), (dy, x, w)
    )


@native
def test_relu_in_place():
    x, w = problem(2, 8, (5, 6))
    depthwise_convolution(x, w.requires_grad_(), backend="native").relu_().sum().backward()
    want = torch.autograd.grad(depthwise_convolution(x, w, backend="native").relu().sum(), w)[0]
    assert torch.equal(w.grad, want)


@native
def test_no_images():
    x, w = problem(0, 16, (4, 4))
    y, dx, dw = results(x, w, 1, "native")
    assert y.shape == dx.shape == (0, 16, 4, 4)
    assert torch.equal(dw, torch.zeros_like(w))


@pytest.mark.parametrize(
    ("x", "w", "stride", "sentence"),
    [
        ((1, 4, 5, 5), (4, 2, 3, 3), 1, r"w must be \[C, 1, 3, 3\]"),
        ((1, 3, 5, 5), (4, 1, 3, 3), 1, r"x must be \[N, 4"),
        ((1, 4, 0, 5), (4, 1, 3, 3), 1, "H, W ≥ 1"),
        ((1, 4, 5, 5), (4, 1, 3, 3), 3, "stride must be 1 or 2"),
    ],
)
def test_refusals(x, w, stride, sentence):
    with pytest.raises(ValueError, match=sentence):
        depthwise_convolution(torch.zeros(x), torch.zeros(w), stride=stride)


@native
def test_which_modules_are_taken_over(monkeypatch):
    each = {"groups": 16, "bias": False}
    taken = [nn.Conv2d(16, 16, 3, stride, 1, **each) for stride in (1, 2)]
    left = [
        nn.Conv2d(16, 16, 3, padding=1, groups=16),  # a bias
        nn.Conv2d(16, 32, 3, padding=1, **each),  # two filters a channel
        nn.Conv2d(16, 16, 3, padding=0, **each),
        nn.Conv2d(16, 16, 3, stride=3, padding=1, **each),
        nn.Conv2d(16, 16, 5, padding=2, **each),
        nn.Conv2d(16, 16, 3, padding=1, padding_mode="reflect", **each),
        nn.Conv2d(16, 16, 3, padding=1, dilation=2, **each),
    ]
    assert take_over_layers(nn.ModuleList(taken + left)) == 2
    calls = []
    monkeypatch.setattr(
        "c2v_sim.models.faster.layers.depthwise_convolution",
        lambda x, w, **kwargs: calls.append(len(w)) or depthwise_convolution(x, w, **kwargs),
    )
    x = torch.randn(2, 16, 7, 6)
    for module in taken:
        want = F.conv2d(x, module.weight, None, module.stride, 1, groups=16)
        torch.testing.assert_close(module(x), want)
    assert calls == [16, 16]
    torch.testing.assert_close(  # few channels: torch's
        ConvolveEach(1)(x[:, :3], taken[0].weight[:3], None),
        F.conv2d(x[:, :3], taken[0].weight[:3], padding=1, groups=3),
    )
    assert calls == [16, 16]
