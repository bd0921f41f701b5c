"""convolution against torch's in float64: values, gradients, shapes, memory formats, refusals."""

import copy
import importlib
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

from c2v_sim.models.faster.layers import take_over_layers
from c2v_sim.ops._dispatch import native_missing
from c2v_sim.ops.layers.convolution import convolution, convolution_backward_torch, pays

module = importlib.import_module("c2v_sim.ops.layers.convolution")
native = pytest.mark.skipif(native_missing is not None, reason=str(native_missing))
LIMIT = 1e-5  # of the Frobenius norm


def problem(n, side, channels, filters, taps, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, channels, *side, generator=g)
    w = torch.randn(filters, channels, taps, taps, generator=g) / (channels * taps**2) ** 0.5
    return x, w, torch.randn(filters, generator=g)


def results(x, w, bias, padding, dy, **kwargs):
    """y, dx, dw, db."""
    leaves = [t.clone(memory_format=torch.preserve_format).requires_grad_() for t in (x, w, bias)]
    y = convolution(*leaves, padding=padding, **kwargs)
    y.backward(dy.to(y.dtype).expand_as(y))
    return [y.detach(), *(leaf.grad for leaf in leaves)]


def errors(x, w, bias, padding, backend, stride=1):
    """Relative to the norm of what float64 gives; by absolute sums, which cannot cancel."""
    exact = [t.double() for t in (x, w, bias)]
    y = convolution(*exact, padding=padding, stride=stride, backend="torch")
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    want = results(*exact, padding, dy, stride=stride, backend="torch")
    magnitude = results(
        *(t.abs() for t in exact), padding, dy.abs(), stride=stride, backend="torch"
    )
    got = results(x, w, bias, padding, dy, stride=stride, backend=backend)
    pairs = zip(got, want, magnitude, strict=True)
    return [((a.double() - b).norm() / m.norm()).item() for a, b, m in pairs]


@native
@pytest.mark.parametrize("taps", [3, 5])
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("channels", [1, 7, 15, 16, 17, 32, 33])
@pytest.mark.parametrize("filters", [1, 8, 13, 16, 31, 48])
def test_values_and_gradients_at_all_edges_of_blocks(taps, padding, channels, filters):
    for n, side in ((1, (5, 5)), (2, (6, 9)), (17, (8, 7))):
        x, w, bias = problem(n, side, channels, filters, taps)
        assert max(errors(x, w, bias, padding, "native")) < LIMIT


def as_torch(x, w, bias, padding, stride):
    """At most twice as far from float64 as torch, which has the same products there."""
    ours, torchs = (errors(x, w, bias, padding, backend, stride) for backend in ("native", "torch"))
    return all(mine <= 2 * others + 1e-7 for mine, others in zip(ours, torchs, strict=True))


@native
@pytest.mark.parametrize(("taps", "padding"), [(1, 0), (3, 0), (3, 1), (3, 2), (5, 1), (5, 2)])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("channels", [1, 3, 7, 15, 16, 17, 33])
@pytest.mark.parametrize("filters", [1, 13, 15, 16, 17, 31, 33, 48])
def test_the_definition_at_all_edges(taps, padding, stride, channels, filters):
    if stride == 1 and taps > 1 and channels >= 16 and filters >= 16:
        pytest.skip("these have fewer products")
    for n, side in ((1, (5, 5)), (2, (6, 9)), (3, (13, 12)), (1, (27, 14))):
        assert as_torch(*problem(n, side, channels, filters, taps), padding, stride)


@native
@settings(deadline=None, max_examples=40)
@given(
    st.tuples(
        st.integers(1, 4),
        st.integers(5, 29),
        st.integers(5, 29),
        st.integers(1, 70),
        st.integers(1, 70),
    ),
    st.sampled_from([(1, 0), (3, 0), (3, 1), (3, 2), (5, 0), (5, 3)]),
)
def test_any_shape_of_stride_2(sizes, filter_and_padding):
    n, high, wide, channels, filters = sizes
    taps, padding = filter_and_padding
    assert as_torch(*problem(n, (high, wide), channels, filters, taps), padding, 2)


@native
@settings(deadline=None, max_examples=40)
@given(
    st.tuples(
        st.integers(1, 4),
        st.integers(5, 15),
        st.integers(5, 15),
        st.integers(1, 70),
        st.integers(1, 70),
    ),
    st.sampled_from([3, 5]),
    st.integers(0, 2),
)
def test_any_shape(sizes, taps, padding):
    n, high, wide, channels, filters = sizes
    x, w, bias = problem(n, (high, wide), channels, filters, taps)
    assert max(errors(x, w, bias, padding, "native")) < LIMIT


@native
@pytest.mark.parametrize(("channels", "filters"), [(144, 304), (257, 131), (16, 400)])
@pytest.mark.parametrize(("side", "taps"), [(4, 3), (8, 3), (5, 5)])
def test_taps_that_are_there_in_slices(channels, filters, side, taps):
    """A single block of tiles has 128 channels or filters at a time."""
    tensors = problem(4, (side, side), channels, filters, taps)
    assert max(errors(*tensors, taps // 2, "native")) < LIMIT


@native
@pytest.mark.parametrize(
    ("n", "side", "channels", "taps", "padding"),
    [(50, 16, 32, 3, 1), (25, 8, 256, 3, 1), (25, 4, 512, 3, 1), (50, 14, 32, 5, 0)],
)
def test_the_error_of_whole_layers(n, side, channels, taps, padding):
    """F(2×2, 3×3) is at most twice as far from float64 as torch; others are below the limit."""
    x, w, bias = problem(n, (side, side), channels, 64, taps)
    ours, torchs = (errors(x, w, bias, padding, backend) for backend in ("native", "torch"))
    for mine, others in zip(ours, torchs, strict=True):
        assert mine < (2 * others + 1e-8 if side == 4 else LIMIT)


@native
def test_the_image_without_images_and_the_single_output():
    x, w, bias = problem(0, (6, 6), 16, 16, 3)
    assert convolution(x, w, bias, backend="native").shape == (0, 16, 4, 4)
    x, w, bias = problem(1, (5, 5), 3, 2, 5)
    y = convolution(x, w, bias, backend="native")
    torch.testing.assert_close(y, F.conv2d(x, w, bias))


@native
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("which", ["x", "w", "dy"])
def test_tensors_that_are_not_contiguous(which, stride):
    x, w, bias = problem(2, (8, 8), 32, 32, 3)
    y = convolution(x, w, bias, padding=1, stride=stride, backend="torch")
    dy = torch.randn(y.shape)
    want = results(x, w, bias, 1, dy, stride=stride, backend="torch")
    if which == "x":
        x = torch.stack([x, -x], dim=-1)[..., 0]
    elif which == "w":
        w = w.transpose(2, 3).contiguous().transpose(2, 3)
    else:
        dy = dy[:, :1].expand_as(dy)
        want = results(x, w, bias, 1, dy, stride=stride, backend="torch")
    got = results(x, w, bias, 1, dy, stride=stride, backend="native")
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@native
@pytest.mark.parametrize("channels", [3, 32])
def test_relu_in_place(channels):
    x, w, bias = problem(2, (8, 8), channels, 32, 3)
    grads = []
    for relu in (torch.relu, torch.relu_):
        leaf = w.clone().requires_grad_()
        relu(convolution(x, leaf, bias, backend="native")).square().sum().backward()
        grads.append(leaf.grad)
    assert torch.equal(*grads)


@native
@pytest.mark.parametrize("stride", [1, 2])
def test_only_the_gradients_that_are_needed(stride):
    x, w, bias = problem(2, (8, 8), 32, 32, 3)
    for needed in [(True, False, False), (False, True, False), (False, False, True)]:
        leaves = [t.clone().requires_grad_(n) for t, n in zip((x, w, bias), needed, strict=True)]
        convolution(*leaves, padding=1, stride=stride, backend="native").sum().backward()
        assert tuple(leaf.grad is not None for leaf in leaves) == needed
        want = results(x, w, bias, 1, torch.ones(1), stride=stride, backend="torch")[1:]
        for leaf, expected in zip(leaves, want, strict=True):
            if leaf.grad is not None:
                torch.testing.assert_close(leaf.grad, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("stride", [1, 2])
def test_the_reference_passes_gradcheck(stride):
    x, w, bias = (t.double().requires_grad_() for t in problem(2, (6, 7), 2, 3, 3))
    steps = {"padding": 1, "stride": stride}
    torch.autograd.gradcheck(lambda *a: convolution(*a, **steps, backend="torch"), (x, w, bias))
    shape = convolution(x, w, bias, **steps, backend="torch").shape
    dy = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(
        lambda *a: convolution_backward_torch(*a, 1, stride, True, True, True), (dy, x, w)
    )


@native
@pytest.mark.parametrize("stride", [1, 2])
def test_a_second_derivative(stride):
    x, w, bias = (t.requires_grad_() for t in problem(2, (8, 8), 32, 32, 3))

    def penalty(backend):
        y = convolution(x, w, bias, padding=1, stride=stride, backend=backend)
        loss = y.square().sum()
        (grad,) = torch.autograd.grad(loss, w, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), (x, w))

    for a, b in zip(penalty("native"), penalty("torch"), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3 * b.abs().max().item())


@native
@pytest.mark.parametrize("stride", [1, 2])
def test_bits_do_not_depend_on_threads_or_repetition(stride):
    x, w, bias = problem(20, (16, 16), 32, 32, 3)
    dy = torch.randn(20, 32, 16 // stride, 16 // stride)
    first = results(x, w, bias, 1, dy, stride=stride, backend="native")
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            again = results(x, w, bias, 1, dy, stride=stride, backend="native")
            assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    finally:
        torch.set_num_threads(before)


@native
def test_narrower_vectors():
    """What a CPU without AVX-512 does, in a process of its own: the choice is made once."""
    code = """
import torch
from test_convolution import LIMIT, errors, problem
for taps, channels, filters in ((3, 16, 32), (3, 7, 33), (5, 16, 24), (5, 9, 8)):
    for n, side in ((2, (6, 9)), (17, (8, 7))):
        for stride in (1, 2):
            given = problem(n, side, channels, filters, taps)
            assert max(errors(*given, 1, "native", stride)) < LIMIT
print(torch.backends.cpu.get_cpu_capability())
"""
    environment = os.environ | {"ATEN_CPU_CAPABILITY": "avx2"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=Path(__file__).parent, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() != "AVX512"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"w": torch.zeros(4, 3, 4, 4)}, "T = 1, 3 or 5"),
        ({"x": torch.zeros(2, 4, 8, 8)}, r"x must be \[N, 3"),
        ({"bias": torch.zeros(5)}, r"bias must be \[4\]"),
        ({"padding": 3}, "padding must be"),
        ({"stride": 3}, "stride must be"),
        ({"x": torch.zeros(2, 3, 2, 8), "padding": 0}, "smaller than the filter"),
    ],
)
def test_refusals(change, sentence):
    given = {"x": torch.zeros(2, 3, 8, 8), "w": torch.zeros(4, 3, 3, 3), "bias": torch.zeros(4)}
    given = {**given, "padding": 1, **change}
    with pytest.raises(ValueError, match=sentence):
        convolution(**given)


# ---- taken over ------------------------------------------------------------------------------


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding="same"),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.Conv2d(64, 32, 3, stride=2),
            nn.Conv2d(32, 64, 3, padding=1, groups=2),
            nn.Conv2d(64, 64, 3, padding=1, padding_mode="circular"),
            nn.Conv2d(64, 64, 3, padding=(1, 0)),
            nn.Conv2d(64, 16, 1),  # of stride 1: stays with torch
            nn.Conv2d(16, 16, 1, stride=3),
        )

    def forward(self, x):
        return self.layers(x)


@native
def test_the_convolutions_of_any_module_are_taken_over(monkeypatch):
    plain = Own()
    taken = copy.deepcopy(plain)
    assert take_over_layers(taken) == 5
    calls = []
    monkeypatch.setattr(
        "c2v_sim.models.faster.layers.convolution",
        lambda x, w, b, **kwargs: calls.append(tuple(w.shape)) or convolution(x, w, b, **kwargs),
    )
    x = torch.randn(64, 3, 12, 12)
    torch.testing.assert_close(taken(x), plain(x), rtol=1e-4, atol=1e-4)
    assert calls == [(32, 3, 3, 3), (32, 32, 3, 3), (64, 32, 5, 5), (32, 64, 3, 3)]
    assert [type(m) for m in taken.modules()] == [type(m) for m in plain.modules()]
    assert taken.state_dict().keys() == plain.state_dict().keys()
    calls.clear()
    torch.testing.assert_close(copy.deepcopy(taken)(x), taken(x), rtol=0, atol=0)
    assert len(calls) == 8  # a copy has it too


def test_other_types_and_few_tiles_stay_with_torch(monkeypatch):
    monkeypatch.setattr(module._operator, "native_keys", {"CPU"})
    x = torch.zeros(8, 64, 8, 8)
    assert pays(x, 64, 64, 3, 1)
    assert not pays(x.double(), 64, 64, 3, 1)
    assert not pays(x[:1, :, :4, :4], 64, 64, 3, 1)
    assert not pays(x, 64, 24, 3, 1)
    assert not pays(x, 8, 64, 3, 1)
    assert not pays(x, 64, 64, 7, 3)
    assert not pays(x, 64, 64, 1, 0)
    images = torch.zeros(32, 16, 32, 32)
    assert pays(images, 32, 16, 3, 1, 2)
    assert pays(images, 32, 16, 1, 0, 2)
    assert not pays(images[:1], 32, 16, 3, 1, 2)  # few pixels
    assert not pays(images, 256, 16, 3, 1, 2)  # many taps
    assert not pays(images, 24, 16, 3, 1, 2)
    assert pays(images[:, :3], 16, 3, 3, 1)
    assert not pays(images[:, :3], 64, 3, 3, 1)
    monkeypatch.setattr(module._operator, "native_keys", set())
    assert not pays(x, 64, 64, 3, 1)
