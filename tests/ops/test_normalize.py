"""normalize against torch's norms in float64: values, gradients, shapes, refusals; in layers."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from c2v_sim.models.faster.layers import take_over_layers
from c2v_sim.models.faster.normalized import RELU, activated
from c2v_sim.ops._dispatch import native_missing
from c2v_sim.ops.layers.normalize import normalize, normalize_backward_torch, normalize_torch

native = pytest.mark.skipif(native_missing is not None, reason=str(native_missing))
FOLDERS = (Path(__file__).parent, Path(__file__).parents[1] / "support")
CUTS = (0.0, RELU, 6.0)
NAMES = ("y", "dx", "dw", "db", "dshortcut")


def problem(n, channels, sides, shortcut=True, mean=0.0):
    g = torch.Generator().manual_seed(n + channels)
    x, other = (torch.randn(n, channels, *sides, generator=g) for _ in range(2))
    w, b = (torch.randn(channels, generator=g) for _ in range(2))
    return [3 * x + mean, w, b, *([other] if shortcut else [])]


def plain(x, w, b, shortcut=None, *, groups, most):
    y = F.group_norm(x, groups, w, b) if groups else F.batch_norm(x, None, None, w, b, True)
    y = y if shortcut is None else y + shortcut
    return y if not most else F.relu(y) if most == RELU else F.hardtanh(y, 0.0, most)


def fused(x, w, b, shortcut=None, *, groups, most, backend="native"):
    return normalize(x, w, b, groups=groups, shortcut=shortcut, most=most, backend=backend)[0]


def results(run, tensors, **settings):
    """y and the gradients of all tensors, for an upstream that depends on shapes alone."""
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    y = run(*leaves, **settings)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy)]


def check(tensors, **settings):
    exact = results(plain, [t.double() for t in tensors], **settings)
    ours, torchs = (results(run, tensors, **settings) for run in (fused, plain))
    for name, a, b, c in zip(NAMES, ours, torchs, exact, strict=False):
        # Sums that cancel, such as dx of one number, are nothing but rounding in both.
        floor = 4e-7 * max(float(c.norm()), float(exact[1].numel()) ** 0.5)
        assert (a - c).norm() <= 2 * (b - c).norm() + floor, (name, settings)


@native
@pytest.mark.parametrize("most", CUTS)
@pytest.mark.parametrize("channels", [1, 7, 8, 15, 16, 17, 24, 33, 64, 130])
def test_values_and_gradients_at_all_edges(channels, most):
    for sides in [(1, 2), (2, 2), (3, 5), (9, 1)]:
        for groups in (0, 1, *([2] if channels % 2 == 0 else []), channels):
            for shortcut in (False, True):
                check(problem(3, channels, sides, shortcut), groups=groups, most=most)


@native
@pytest.mark.parametrize("groups", [0, 2])
@pytest.mark.parametrize(("channels", "side"), [(16, 65), (48, 40), (320, 12)])
def test_images_of_several_chunks_far_from_zero(channels, side, groups):
    """A mean that is large beside the deviation costs no digits."""
    check(problem(5, channels, (side, side), mean=100.0), groups=groups, most=RELU)


@pytest.mark.parametrize("groups", [0, 2])
@pytest.mark.parametrize("most", CUTS)
def test_the_reference_passes_gradcheck_and_is_torchs(groups, most):
    tensors = [t.double().requires_grad_() for t in problem(2, 4, (2, 3))]
    run = {"groups": groups, "most": most, "backend": "torch"}
    torch.autograd.gradcheck(lambda *t: fused(*t, **run), tensors)
    y = fused(*tensors, **run)
    torch.testing.assert_close(y, plain(*tensors, groups=groups, most=most))
    dy = torch.randn_like(y)
    _, mean, var = normalize_torch(*tensors, None, None, groups, 1e-5, most)
    x, w = tensors[:2]
    ours = normalize_backward_torch(dy, x, y, w, mean, var, groups, 1e-5, most, True)
    for a, b in zip(ours, torch.autograd.grad(y, tensors, dy), strict=True):
        torch.testing.assert_close(a if a.numel() else dy, b)


@native
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_known_statistics(backend):
    x, w, b, shortcut = problem(4, 16, (5, 3))
    mean, var = torch.randn(16), torch.rand(16) + 0.1
    y, *same = normalize(
        x, w, b, groups=0, known=(mean, var), shortcut=shortcut, most=6.0, backend=backend
    )
    want = F.hardtanh(F.batch_norm(x, mean, var, w, b) + shortcut, 0.0, 6.0)
    torch.testing.assert_close(y, want)
    assert all(torch.equal(a, b.double()) for a, b in zip(same, (mean, var), strict=True))


@native
@pytest.mark.parametrize("groups", [0, 2])
def test_nan_stays_where_it_is(groups):
    x, w, b = problem(3, 16, (4, 4), shortcut=False)
    x[1, 3, 2, 2] = float("nan")
    for most in CUTS:
        ours = results(fused, [x, w, b], groups=groups, most=most)
        torchs = results(plain, [x, w, b], groups=groups, most=most)
        for a, c in zip(ours, torchs, strict=True):
            assert torch.equal(a.isnan(), c.isnan())


@native
@pytest.mark.parametrize("groups", [0, 2])
def test_a_second_derivative(groups):
    tensors = [t.requires_grad_() for t in problem(2, 8, (3, 3))]

    def twice(run):
        loss = run(*tensors, groups=groups, most=RELU).square().sum()
        first = torch.autograd.grad(loss, tensors, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), tensors)

    for a, b in zip(twice(fused), twice(plain), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-3 * b.abs().max().item())


@native
def test_only_the_gradients_that_are_needed():
    for needed in [(True, False, False, False), (False, True, True, False), (False,) * 3 + (True,)]:
        tensors = problem(2, 8, (3, 3))
        leaves = [t.requires_grad_(n) for t, n in zip(tensors, needed, strict=True)]
        fused(*leaves, groups=0, most=0.0).sum().backward()
        assert tuple(leaf.grad is not None for leaf in leaves) == needed


@native
def test_errors_are_those_of_both_kinds_of_vectors():
    code = """
import sys
sys.path[:0] = sys.argv[1:]
from test_normalize import RELU, check, problem
for channels in (1, 8, 17, 64):
    for groups in (0, 1):
        check(problem(3, channels, (5, 7)), groups=groups, most=RELU)
"""
    for capability in ("avx2", "avx512"):
        command = [sys.executable, "-P", "-c", code, *(str(p) for p in FOLDERS)]
        environment = os.environ | {"ATEN_CPU_CAPABILITY": capability}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"w": torch.ones(3)}, "x must be"),
        ({"groups": 3}, "no 3 groups"),
        ({"shortcut": torch.ones(1)}, "shortcut must be like x"),
        ({"most": -1.0}, "most must be"),
    ],
)
def test_what_is_wrong_is_named(change, sentence):
    x, w, b, _ = problem(2, 4, (3, 3))
    settings = {"x": x, "w": w, "b": b, "groups": 2} | change
    with pytest.raises(ValueError, match=sentence):
        normalize(settings.pop("x"), settings.pop("w"), settings.pop("b"), **settings)


@native
@pytest.mark.parametrize("make", [nn.BatchNorm2d, lambda channels: nn.GroupNorm(2, channels)])
def test_a_layer_that_is_taken_over_does_what_it_did(make):
    layer = make(16)
    with torch.no_grad():
        layer.weight.normal_(generator=torch.Generator().manual_seed(0))
    x, _, _, shortcut = problem(4, 16, (6, 5), mean=1.0)
    ours = nn.Sequential(copy.deepcopy(layer))
    assert take_over_layers(ours) == 1
    ours = copy.deepcopy(ours)[0]  # copies have the faster forward too, with their own parameters
    for _ in range(2):
        torch.testing.assert_close(ours(x), layer(x))
        torch.testing.assert_close(
            activated(ours, x, shortcut=shortcut, most=6.0),
            activated(layer, x, shortcut=shortcut, most=6.0),
        )
    assert ours.state_dict().keys() == layer.state_dict().keys()
    for a, b in zip(ours.state_dict().values(), layer.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b)
    ours.eval(), layer.eval()
    torch.testing.assert_close(ours(x), layer(x))  # gradients are asked for
    with torch.no_grad():
        torch.testing.assert_close(ours(x), layer(x))


@native
def test_a_hook_sees_the_norm_alone():
    x, _, _, shortcut = problem(2, 8, (4, 4))
    layer = nn.Sequential(nn.GroupNorm(2, 8))
    take_over_layers(layer)
    seen = []
    layer[0].register_forward_hook(lambda module, inputs, output: seen.append(output.clone()))
    y = activated(layer[0], x, shortcut=shortcut, most=RELU)
    torch.testing.assert_close(seen, [F.group_norm(x, 2, layer[0].weight, layer[0].bias)])
    torch.testing.assert_close(y, F.relu(seen[0] + shortcut))


@native
def test_one_number_of_each_channel_is_refused_as_torch_does():
    ours = nn.Sequential(nn.BatchNorm2d(8))
    take_over_layers(ours)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        ours(torch.ones(1, 8, 1, 1))


def test_norms_without_parameters_or_averages_stay():
    layers = [
        nn.BatchNorm2d(8, affine=False),
        nn.BatchNorm2d(8, track_running_stats=False),
        nn.BatchNorm2d(8, momentum=None),
        nn.GroupNorm(2, 8, affine=False),
        nn.InstanceNorm2d(8),
    ]
    assert take_over_layers(nn.Sequential(*layers)) == 0
