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

from c2v_sim.models.convolutions import take_over_convolutions
from c2v_sim.ops._dispatch import native_missing
from c2v_sim.ops.convolution import convolution, convolution_backward_torch, pays

module = importlib.import_module("c2v_sim.ops.convolution")
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
    y.backward(dy.to(y.dtype))
    return [y.detach(), *(leaf.grad for leaf in leaves)]


def errors(x, w, bias, padding, backend):
    """Relative to the norm of what float64 gives; by absolute sums, which cannot cancel."""
    exact = [t.double() for t in (x, w, bias)]
    y = convolution(*exact, padding=padding, backend="torch")
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    want = results(*exact, padding, dy, backend="torch")
    magnitude = results(*(t.abs() for t in exact), padding, dy.abs(), backend="torch")
    got = results(x, w, bias, padding, dy, backend=backend)
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
@pytest.mark.parametrize("which", ["x", "w", "dy"])
def test_tensors_that_are_not_contiguous(which):
    x, w, bias = problem(2, (8, 8), 32, 32, 3)
    y = convolution(x, w, bias, padding=1, backend="torch")
    dy = torch.randn(y.shape)
    want = results(x, w, bias, 1, dy, backend="torch")
    if which == "x":
        x = torch.stack([x, -x], dim=-1)[..., 0]
    elif which == "w":
        w = w.transpose(2, 3).contiguous().transpose(2, 3)
    else:
        dy = dy[:, :1].expand_as(dy)
        want = results(x, w, bias, 1, dy, backend="torch")
    got = results(x, w, bias, 1, dy, backend="native")
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@native
def test_only_the_gradients_that_are_needed():
    x, w, bias = problem(2, (8, 8), 32, 32, 3)
    for needed in [(True, False, False), (False, True, False), (False, False, True)]:
        leaves = [t.clone().requires_grad_(n) for t, n in zip((x, w, bias), needed, strict=True)]
        convolution(*leaves, padding=1, backend="native").sum().backward()
        assert tuple(leaf.grad is not None for leaf in leaves) == needed


def test_the_reference_passes_gradcheck():
    x, w, bias = (t.double().requires_grad_() for t in problem(2, (6, 7), 2, 3, 3))
    torch.autograd.gradcheck(lambda *a: convolution(*a, padding=1, backend="torch"), (x, w, bias))
    dy = torch.randn(2, 3, 6, 7, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(
        lambda *a: convolution_backward_torch(*a, 1, True, True, True), (dy, x, w)
    )


@native
def test_a_second_derivative():
    x, w, bias = (t.requires_grad_() for t in problem(2, (8, 8), 32, 32, 3))

    def penalty(backend):
        loss = convolution(x, w, bias, padding=1, backend=backend).square().sum()
        (grad,) = torch.autograd.grad(loss, w, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), (x, w))

    for a, b in zip(penalty("native"), penalty("torch"), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3 * b.abs().max().item())


@native
def test_bits_do_not_depend_on_threads_or_repetition():
    x, w, bias = problem(20, (16, 16), 32, 32, 3)
    dy = torch.randn(20, 32, 16, 16)
    first = results(x, w, bias, 1, dy, backend="native")
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            again = results(x, w, bias, 1, dy, backend="native")
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
        assert max(errors(*problem(n, side, channels, filters, taps), 1, "native")) < LIMIT
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
        ({"w": torch.zeros(4, 3, 4, 4)}, "T = 3 or 5"),
        ({"x": torch.zeros(2, 4, 8, 8)}, r"x must be \[N, 3"),
        ({"bias": torch.zeros(5)}, r"bias must be \[4\]"),
        ({"padding": 3}, "padding must be"),
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
            nn.Conv2d(3, 32, 3, padding=1),  # too few channels to pay
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding="same"),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.Conv2d(64, 64, 3, stride=2),
            nn.Conv2d(64, 64, 3, padding=1, groups=2),
            nn.Conv2d(64, 64, 3, padding=1, padding_mode="circular"),
            nn.Conv2d(64, 64, 3, padding=(1, 0)),
            nn.Conv2d(64, 16, 1),
        )

    def forward(self, x):
        return self.layers(x)


@native
def test_the_convolutions_of_any_module_are_taken_over(monkeypatch):
    plain = Own()
    taken = copy.deepcopy(plain)
    assert take_over_convolutions(taken) == 3
    calls = []
    monkeypatch.setattr(
        "c2v_sim.models.convolutions.convolution",
        lambda x, w, b, **kwargs: calls.append(tuple(w.shape)) or convolution(x, w, b, **kwargs),
    )
    x = torch.randn(4, 3, 12, 12)
    torch.testing.assert_close(taken(x), plain(x), rtol=1e-4, atol=1e-4)
    assert calls == [(32, 32, 3, 3), (64, 32, 5, 5)]
    assert [type(m) for m in taken.modules()] == [type(m) for m in plain.modules()]
    assert taken.state_dict().keys() == plain.state_dict().keys()
    calls.clear()
    torch.testing.assert_close(copy.deepcopy(taken)(x), taken(x), rtol=0, atol=0)
    assert len(calls) == 4  # a copy has it too


def test_other_types_and_few_tiles_stay_with_torch(monkeypatch):
    monkeypatch.setattr(module._operator, "native_keys", {"CPU"})
    x = torch.zeros(8, 64, 8, 8)
    assert pays(x, 64, 64, 3, 1)
    assert not pays(x.double(), 64, 64, 3, 1)
    assert not pays(x[:1, :, :4, :4], 64, 64, 3, 1)
    assert not pays(x, 64, 24, 3, 1)
    assert not pays(x, 8, 64, 3, 1)
    assert not pays(x, 64, 64, 7, 3)
    monkeypatch.setattr(module._operator, "native_keys", set())
    assert not pays(x, 64, 64, 3, 1)
