"""max_pool has the bits of torch's pool and ReLU, values and gradients."""

import pytest
import torch
import torch.nn.functional as F

from c2v_sim.ops._dispatch import native_missing
from c2v_sim.ops.layers.max_pool import max_pool

native = pytest.mark.skipif(native_missing is not None, reason=str(native_missing))
BACKENDS = [pytest.param("native", marks=native), "torch"]


def both(x, relu, backend, dy=None):
    """Value and gradient: ours, torch's."""
    out = []
    for run in (lambda t: max_pool(t, relu=relu, backend=backend), lambda t: plain(t, relu)):
        leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
        y = run(leaf)
        y.backward(torch.ones_like(y) if dy is None else dy)
        out.append((y.detach(), leaf.grad))
    return out


def plain(x, relu):
    y = F.max_pool2d(x, 2)
    return F.relu(y) if relu else y


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("channels", [1, 7, 8, 9, 32])
@pytest.mark.parametrize("sides", [(2, 2), (5, 4), (6, 9), (7, 7)])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_bits_are_those_of_torch(backend, relu, channels, sides, form):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, channels, *sides, generator=g).to(memory_format=form)
    dy = torch.randn(3, channels, sides[0] // 2, sides[1] // 2, generator=g)
    (y, grad), (y2, grad2) = both(x, relu, backend, dy)
    assert torch.equal(y, y2)
    assert torch.equal(grad, grad2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("relu", [False, True])
def test_ties_zeros_infinities_and_nan(backend, relu):
    values = [1.0, 0.0, -0.0, -1.0, float("inf"), -float("inf"), float("nan")]
    squares = torch.cartesian_prod(*[torch.tensor(values)] * 4)  # every four
    x = squares.reshape(-1, 1, 2, 2)
    (y, grad), (y2, grad2) = both(x, relu, backend)
    torch.testing.assert_close(y, y2, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(grad, grad2)


@native
def test_no_images():
    assert max_pool(torch.zeros(0, 4, 6, 6), backend="native").shape == (0, 4, 3, 3)


@native
def test_a_second_derivative():
    x = torch.randn(2, 3, 5, 4, requires_grad=True)

    def twice(run):
        (grad,) = torch.autograd.grad(run(x).pow(3).sum(), x, create_graph=True)
        return grad.detach(), torch.autograd.grad(grad.pow(2).sum(), x)[0]

    ours = twice(lambda t: max_pool(t, relu=True, backend="native"))
    for a, b in zip(ours, twice(lambda t: plain(t, True)), strict=True):
        torch.testing.assert_close(a, b)


def test_images_that_are_too_small_are_refused():
    with pytest.raises(ValueError, match="H, W ≥ 2"):
        max_pool(torch.zeros(1, 3, 1, 4))
