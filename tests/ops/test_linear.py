"""linear: by oneDNN where MKL leaves the wide vectors unused, with the result of torch's layer."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from c2v_sim.models.faster.layers import take_over_layers
from c2v_sim.models.linear_chain import linear_chain
from c2v_sim.models.split import split
from c2v_sim.ops.layers import linear as module
from c2v_sim.ops.layers.linear import FEWEST_PRODUCTS, linear, pays
from c2v_sim.system.machine import intra_op_threads

SHAPES = [(1, 1, 1), (7, 31, 5), (8, 1000, 500), (9, 1000, 501), (31, 499, 257), (50, 1600, 512)]


@pytest.fixture
def taken(monkeypatch):
    """oneDNN's products, however small, where this torch has them."""
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch has no oneDNN products")
    monkeypatch.setattr(module, "mkl_is_narrow", lambda: True)
    monkeypatch.setattr(module, "FEWEST_PRODUCTS", 0)
    monkeypatch.setattr(module, "FEWEST_ROWS", 1)


def tensors(rows, inputs, outputs, dtype=torch.float32):
    generator = torch.Generator().manual_seed(rows * inputs + outputs)
    shapes = ((rows, inputs), (outputs, inputs), (outputs,), (rows, outputs))
    return [torch.randn(*s, generator=generator).to(dtype) for s in shapes]


def results(layer, x, w, bias, grad_y):
    x, w, bias = (
        t.clone(memory_format=torch.preserve_format).requires_grad_() for t in (x, w, bias)
    )
    y = layer(x, w, bias)
    return [y.detach(), *torch.autograd.grad(y, (x, w, bias), grad_y)]


@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_as_exact_as_torch(taken, shape):
    given = tensors(*shape)
    exact = results(F.linear, *(t.double() for t in given))
    ours, torchs = results(linear, *given), results(F.linear, *given)
    for a, b, e in zip(ours, torchs, exact, strict=True):
        allowed = 2 * (b - e).norm() + 1e-6 * e.norm()
        assert (a - e).norm() <= allowed


def test_rows_of_rows_strided_operands_and_no_bias(taken):
    x, w = torch.randn(3, 40, 5).transpose(1, 2), torch.randn(40, 24).t()
    torch.testing.assert_close(linear(x, w), F.linear(x, w), rtol=1e-5, atol=1e-5)
    x.requires_grad_()
    (ours,) = torch.autograd.grad(linear(x, w).square().sum(), x)
    (torchs,) = torch.autograd.grad(F.linear(x, w).square().sum(), x)
    torch.testing.assert_close(ours, torchs, rtol=1e-4, atol=1e-4)


def test_gradients_that_are_not_needed_are_not_formed(taken, monkeypatch):
    products = []
    real = module.product
    monkeypatch.setattr(module, "product", lambda *a: products.append(a) or real(*a))
    x, w, bias, grad_y = tensors(8, 16, 4)
    linear(x, w.requires_grad_(), bias).backward(grad_y)
    assert len(products) == 2  # y and the gradient of w


def test_it_can_be_differentiated_twice(taken):
    def penalty(layer):
        x, w, bias, _ = tensors(9, 20, 6)
        w.requires_grad_()
        y = layer(x, w, bias)
        (g,) = torch.autograd.grad(y.square().sum(), w, create_graph=True)
        return torch.autograd.grad(g.square().sum(), w)[0]

    torch.testing.assert_close(penalty(linear), penalty(F.linear), rtol=1e-4, atol=1e-2)


def test_the_same_bits_in_any_place_in_memory_and_every_time(taken):
    x, w, bias, grad_y = tensors(50, 400, 120)
    with intra_op_threads(1):
        first = results(linear, x, w, bias, grad_y)
        for shift in (1, 5, 16):
            room = torch.empty(w.numel() + shift)
            moved = room[shift:].view_as(w).copy_(w)
            again = results(linear, x, moved, bias, grad_y)
            assert all(map(torch.equal, first, again))


def test_the_choice_depends_on_shapes_and_the_cpu(monkeypatch):
    x, w = torch.randn(50, 1600), torch.randn(512, 1600)
    monkeypatch.setattr(module, "mkl_is_narrow", lambda: True)
    assert pays(x, w)
    assert 50 * w.numel() >= FEWEST_PRODUCTS
    assert not pays(x[:7], w)
    assert not pays(x[:, :64], w[:64, :64])
    assert not pays(x.double(), w.double())
    assert not pays(x.to("meta"), w)
    monkeypatch.setattr(module, "mkl_is_narrow", lambda: False)
    assert not pays(x, w)


def test_a_module_and_its_copies_have_it_and_stay_what_they_are(taken, monkeypatch):
    monkeypatch.setattr("c2v_sim.models.faster.layers.mkl_is_narrow", lambda: True)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))
    own = copy.deepcopy(plain)
    assert take_over_layers(own) == 2
    assert type(own[1]) is nn.Linear
    assert own.state_dict().keys() == plain.state_dict().keys()
    other = copy.deepcopy(own)
    with torch.no_grad():
        other[1].weight.zero_()
    x = torch.randn(4, 3, 4)
    torch.testing.assert_close(own(x), plain(x))
    assert not torch.equal(other(x), own(x))  # the copy multiplies by its own weights
    products = []
    real = module.product
    monkeypatch.setattr(module, "product", lambda *a: products.append(a) or real(*a))
    own(x), other(x)
    assert len(products) == 4
    assert len(linear_chain(split(own, x), x)) == 2  # and it is still seen as what it is
