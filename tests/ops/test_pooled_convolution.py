"""pooled_convolution has the bits of convolution, ReLU and pool one after the other."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from c2v_sim.models import build_model
from c2v_sim.models.faster.layers import take_over_layers
from c2v_sim.ops._dispatch import native_missing
from c2v_sim.ops.layers.convolution import convolution
from c2v_sim.ops.layers.max_pool import max_pool
from c2v_sim.ops.layers.pooled_convolution import (
    pooled_convolution,
    pooled_convolution_backward_torch,
    pooled_pays,
)

native = pytest.mark.skipif(native_missing is not None, reason=str(native_missing))


def problem(n, side, channels, filters, taps, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, channels, *side, generator=g)
    w = torch.randn(filters, channels, taps, taps, generator=g) / (channels * taps**2) ** 0.5
    return x, w, torch.randn(filters, generator=g)


def one_by_one(x, w, bias, padding=0, backend="native"):
    return max_pool(
        convolution(x, w, bias, padding=padding, backend=backend), relu=True, backend=backend
    )


def at_once(x, w, bias, padding=0):
    return pooled_convolution(x, w, bias, padding=padding, backend="native")


def results(run, *tensors, padding=0):
    """y and the gradients, those of y being random numbers."""
    leaves = [
        None if t is None else t.clone(memory_format=torch.preserve_format).requires_grad_()
        for t in tensors
    ]
    y = run(*leaves, padding)
    y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(1)))
    return [y.detach(), *(leaf.grad for leaf in leaves if leaf is not None)]


def same_bits(*tensors, padding=0):
    ours, parts = (results(run, *tensors, padding=padding) for run in (at_once, one_by_one))
    return all(torch.equal(a, b) for a, b in zip(ours, parts, strict=True))


@native
@pytest.mark.parametrize(
    ("taps", "padding"), [(1, 0), (3, 0), (3, 1), (3, 2), (5, 0), (5, 1), (5, 2)]
)
@pytest.mark.parametrize("channels", [1, 3, 15, 16, 17, 33])
@pytest.mark.parametrize("filters", [1, 7, 15, 16, 17, 32, 48])
def test_bits_at_all_edges_of_blocks(taps, padding, channels, filters):
    for n, side in ((1, (6, 6)), (2, (7, 9)), (17, (8, 7)), (3, (13, 12))):
        assert same_bits(*problem(n, side, channels, filters, taps), padding=padding)


@native
@pytest.mark.parametrize("tiles", [23, 24, 25, 47, 48, 49])
def test_bits_around_a_block_of_tiles(tiles):
    assert same_bits(*problem(tiles, (6, 6), 32, 64, 5))


@native
@pytest.mark.parametrize(("side", "channels"), [(18, 16), (16, 64), (17, 33)])
def test_bits_of_larger_tiles_which_hold_four_windows(side, channels):
    assert same_bits(*problem(20, (side, side), channels, 32, 3), padding=1)


@native
@settings(deadline=None, max_examples=60)
@given(
    st.tuples(
        st.integers(1, 5),
        st.integers(6, 19),
        st.integers(6, 19),
        st.integers(1, 40),
        st.integers(1, 40),
    ),
    st.sampled_from([(1, 0), (3, 0), (3, 1), (3, 2), (5, 0), (5, 3)]),
)
def test_any_shape(sizes, taps_and_padding):
    n, high, wide, channels, filters = sizes
    taps, padding = taps_and_padding
    assert same_bits(*problem(n, (high, wide), channels, filters, taps), padding=padding)


@native
@pytest.mark.parametrize(("channels", "taps"), [(1, 1), (3, 5), (16, 3), (16, 5)])
def test_ties_zeros_infinities_and_nan(channels, taps):
    g = torch.Generator().manual_seed(0)
    x = torch.randint(-1, 2, (6, channels, 12, 11), generator=g).float()  # whole numbers tie
    w = torch.randint(-1, 2, (16, channels, taps, taps), generator=g).float()
    assert same_bits(x, w, None)
    if channels < 16:  # sums of whole numbers are exact
        assert torch.equal(at_once(x, w, None), F.max_pool2d(F.conv2d(x, w).relu(), 2))
    y, *grads = results(at_once, x, torch.zeros_like(w), -torch.ones(16))
    assert not any(t.any() for t in (y, *grads))  # ReLU cuts everything
    x[0, 0, 3, 4], x[1, 0, 7, 7], x[2, 0, 5, 5] = float("nan"), float("inf"), -float("inf")
    ours, parts = (results(run, x, w, None) for run in (at_once, one_by_one))
    assert ours[0][0].isnan().any()
    for a, b in zip(ours, parts, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@native
@pytest.mark.parametrize(("channels", "taps"), [(3, 5), (32, 5), (32, 3)])
def test_no_further_from_float64_than_the_parts(channels, taps):
    given = problem(8, (14, 14), channels, 32, taps)
    exact = results(
        lambda *a: F.max_pool2d(F.relu(F.conv2d(*a[:3])), 2), *(t.double() for t in given)
    )
    errors = []
    for run in (at_once, one_by_one):
        pairs = zip(results(run, *given), exact, strict=True)
        errors.append([((a.double() - b).norm() / b.norm()).item() for a, b in pairs])
    assert errors[0] <= errors[1]
    assert max(errors[0]) < 1e-5


@native
def test_no_images():
    x, w, bias = problem(0, (6, 6), 3, 16, 5)
    assert at_once(x, w, bias).shape == (0, 16, 1, 1)


@native
@pytest.mark.parametrize("channels", [3, 32])
@pytest.mark.parametrize("which", ["x", "w", "dy"])
def test_tensors_that_are_not_contiguous(channels, which):
    x, w, bias = problem(2, (9, 8), channels, 32, 3)
    dy = torch.randn(2, 32, 3, 3)
    want = torch.autograd.grad(one_by_one(x, w.requires_grad_(), bias), w, dy)[0]
    if which == "x":
        x = torch.stack([x, -x], dim=-1)[..., 0]
    elif which == "w":
        w = w.detach().transpose(2, 3).contiguous().transpose(2, 3).requires_grad_()
    else:
        dy = torch.stack([dy, -dy], dim=-1)[..., 0]
    got = torch.autograd.grad(at_once(x, w, bias), w, dy)[0]
    assert torch.equal(got, want)


@native
@pytest.mark.parametrize("channels", [3, 32])
def test_only_the_gradients_that_are_needed(channels):
    tensors = problem(2, (8, 8), channels, 32, 3)
    want = results(at_once, *tensors)[1:]
    for needed in [(True, False, False), (False, True, False), (False, False, True)]:
        leaves = [t.clone().requires_grad_(n) for t, n in zip(tensors, needed, strict=True)]
        y = at_once(*leaves)
        y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(1)))
        assert tuple(leaf.grad is not None for leaf in leaves) == needed
        for leaf, expected in zip(leaves, want, strict=True):
            assert leaf.grad is None or torch.equal(leaf.grad, expected)


def test_the_reference_passes_gradcheck():
    x, w, bias = (t.double().requires_grad_() for t in problem(2, (7, 6), 2, 3, 3))
    torch.autograd.gradcheck(
        lambda *a: pooled_convolution(*a, padding=1, backend="torch"), (x, w, bias)
    )
    dy = torch.randn(2, 3, 3, 3, dtype=torch.float64, requires_grad=True)
    which = torch.randint(0, 5, (2, 3, 3, 3), dtype=torch.uint8)
    torch.autograd.gradcheck(
        lambda dy, x, w: pooled_convolution_backward_torch(dy, which, x, w, 1, True, True, True),
        (dy, x, w),
    )


@native
@pytest.mark.parametrize("channels", [3, 32])
def test_a_second_derivative(channels):
    x, w, bias = (t.requires_grad_() for t in problem(2, (8, 9), channels, 32, 3))

    def penalty(backend):
        y = pooled_convolution(x, w, bias, padding=1, backend=backend)
        (grad,) = torch.autograd.grad(y.pow(3).sum(), w, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), (x, w))

    for a, b in zip(penalty("native"), penalty("torch"), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3 * b.abs().max().item())


@native
def test_bits_do_not_depend_on_threads():
    given = problem(20, (16, 16), 32, 32, 3)
    first = results(at_once, *given)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            again = results(at_once, *given)
            assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    finally:
        torch.set_num_threads(before)


@native
def test_narrower_vectors():
    """What a CPU without AVX-512 does, in a process of its own: the choice is made once."""
    code = """
import torch
from test_pooled_convolution import problem, same_bits
for taps, channels, filters in ((3, 16, 32), (3, 7, 33), (5, 16, 24), (5, 9, 7)):
    for n, side in ((2, (7, 9)), (17, (8, 7))):
        assert same_bits(*problem(n, side, channels, filters, taps), padding=1)
print(torch.backends.cpu.get_cpu_capability())
"""
    environment = os.environ | {"ATEN_CPU_CAPABILITY": "avx2"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=Path(__file__).parent, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() != "AVX512"


def test_refusals():
    x, w, bias = problem(2, (5, 8), 3, 4, 5)
    with pytest.raises(ValueError, match="nothing to pool"):
        pooled_convolution(x, w, bias)
    with pytest.raises(ValueError, match=r"bias must be \[4\]"):
        pooled_convolution(x, w, bias[:3], padding=1)


@native
def test_where_it_pays():
    x = torch.zeros(50, 32, 14, 14)
    assert pooled_pays(x, 64, 32, 5, 0, 1)
    assert not pooled_pays(x, 64, 32, 3, 0, 2)
    assert not pooled_pays(x.double(), 64, 32, 5, 0, 1)
    assert not pooled_pays(x[:, :, :5, :5], 64, 32, 5, 0, 1)


# ---- in models -------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch):
    """The taps of every call from a model."""
    seen = []
    monkeypatch.setattr(
        "c2v_sim.models.faster.layers.pooled_convolution",
        lambda x, w, *a, **k: seen.append(tuple(w.shape)) or pooled_convolution(x, w, *a, **k),
    )
    return seen


@native
def test_the_cnn_takes_it_where_its_convolutions_are_taken_over(calls):
    plain = build_model("cnn", classes=10, input_shape=(32, 32, 3), seed=0)
    taken = copy.deepcopy(plain)
    take_over_layers(taken)
    x = torch.randn(8, 3, 32, 32)
    expected = plain(x)
    assert calls == []  # torch's convolutions
    got = taken(x)
    assert calls == [(32, 3, 5, 5), (64, 32, 5, 5)]
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    seen = []
    taken.conv2.register_forward_hook(lambda module, given, output: seen.append(output.shape))
    assert torch.equal(taken(x), got)  # whoever watches a layer sees its own result
    assert seen == [(8, 64, 10, 10)]
    assert len(calls) == 3


def own(**pool):
    block = (nn.Conv2d(16, 32, 3), nn.ReLU(inplace=True), nn.MaxPool2d(**{"kernel_size": 2} | pool))
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Sequential(*block))


@native
def test_a_sequential_of_any_module_takes_it(calls):
    plain = own()
    parts, taken = copy.deepcopy(plain), copy.deepcopy(plain)
    take_over_layers(taken)
    for i, name in ((0, "0"), (2, "2.0")):
        parts[i] = copy.deepcopy(taken).get_submodule(name)
    parts[2] = nn.Sequential(parts[2], nn.ReLU(), nn.MaxPool2d((2, 2)))
    x = torch.randn(8, 3, 16, 16)
    assert torch.equal(taken(x), parts(x))
    taken = copy.deepcopy(taken)  # which has weights of its own
    with torch.no_grad():
        taken[2][0].weight.zero_()
    taken(x).sum().backward()
    parts(x).sum().backward()
    assert calls == [(32, 16, 3, 3)] * 2
    assert taken.state_dict().keys() == plain.state_dict().keys()
    assert torch.equal(taken(torch.zeros(3, 16, 16)), taken(torch.zeros(1, 3, 16, 16))[0])
    taken[2][1].register_forward_hook(lambda *_: None)
    taken(x)
    assert len(calls) == 2 + 1


@native
@pytest.mark.parametrize(
    "pool",
    [{"kernel_size": 3}, {"stride": 1}, {"padding": 1}, {"ceil_mode": True}, {"dilation": 2}],
)
def test_other_pools_stay_with_torch(calls, pool):
    plain = own(**pool)
    taken = copy.deepcopy(plain)
    take_over_layers(taken)
    x = torch.randn(8, 3, 16, 15)
    torch.testing.assert_close(taken(x), plain(x), rtol=1e-4, atol=1e-4)
    assert calls == []
