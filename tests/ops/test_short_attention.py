"""short_attention against its float64 definition: values, gradients, and what is not finite."""

import pytest
import torch
from backends import assert_as_good_as_torch, require

from c2v_sim.ops.short_attention import _operator, short_attention, short_attention_torch

SHAPES = [(1, 1, 1, 1), (2, 3, 1, 2), (3, 7, 2, 5), (2, 8, 3, 4), (2, 9, 1, 4), (5, 33, 3, 4)]
SHAPES += [(4, 32, 8, 4), (1, 65, 2, 16)]


def inputs(batch, tokens, heads, width, scale=1.0):
    g = torch.Generator().manual_seed(tokens)
    qkv = scale * torch.randn(batch, tokens, 3 * heads * width, generator=g)
    return qkv, torch.randn(batch, tokens, heads * width, generator=g)


def value_and_gradient(run, qkv, grad_y):
    leaf = qkv.clone().requires_grad_()
    y = run(leaf)
    return y.detach(), torch.autograd.grad(y, leaf, grad_y)[0]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_the_error_is_at_most_twice_torchs(shape, scale):
    heads = shape[2]
    qkv, grad_y = inputs(*shape, scale)
    require(_operator, "native", qkv)
    got = value_and_gradient(lambda x: short_attention(x, heads, backend="native"), qkv, grad_y)
    single, exact = (
        value_and_gradient(lambda x: short_attention_torch(x, heads), q, g)
        for q, g in ((qkv, grad_y), (qkv.double(), grad_y.double()))
    )
    for name, *three in zip(("value", "gradient"), got, single, exact, strict=True):
        assert_as_good_as_torch(*three, what=f"{name} {shape}")


def test_the_definition_by_hand():
    qkv = torch.tensor([[[1.0, 0.0, 5.0], [2.0, 3.0, 7.0]]], dtype=torch.float64)  # w = 1, H = 1
    e3, e6 = torch.exp(torch.tensor([3.0, 6.0], dtype=torch.float64))
    wanted = [(5 + 7 * e3) / (1 + e3), (5 + 7 * e6) / (1 + e6)]
    torch.testing.assert_close(short_attention_torch(qkv, 1).flatten(), torch.stack(wanted))


def test_the_gradient_of_the_definition():
    qkv = inputs(2, 5, 2, 3)[0].double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: short_attention_torch(x, 2), qkv)


def test_a_second_derivative():
    qkv, grad_y = inputs(2, 5, 2, 3)
    require(_operator, "native", qkv)

    def twice(run):
        leaf = qkv.clone().requires_grad_()
        (grad,) = torch.autograd.grad(run(leaf), leaf, grad_y, create_graph=True)
        return torch.autograd.grad(grad.pow(2).sum(), leaf)[0]

    ours = twice(lambda x: short_attention(x, 2, backend="native"))
    torch.testing.assert_close(ours, twice(lambda x: short_attention_torch(x, 2)))


def test_bits_do_not_depend_on_threads_or_the_batch():
    qkv, grad_y = inputs(6, 32, 8, 4)
    require(_operator, "native", qkv)
    threads, results = torch.get_num_threads(), []
    for count in (1, 2):
        torch.set_num_threads(count)
        results.append(value_and_gradient(lambda x: short_attention(x, 8), qkv, grad_y))
    torch.set_num_threads(threads)
    alone = value_and_gradient(lambda x: short_attention(x, 8), qkv[2:3], grad_y[2:3])
    for one, two, single in zip(*results, alone, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one[2:3], single)


def test_scores_far_apart_and_not_finite():
    qkv = inputs(1, 9, 1, 4)[0]
    require(_operator, "native", qkv)
    for value in (1e3, 1e19, float("inf"), float("nan")):
        odd = qkv.clone()
        odd[0, 3, 4] = value  # of the key of token 3
        got = short_attention(odd, 1, backend="native")
        wanted = short_attention_torch(odd, 1)
        torch.testing.assert_close(got, wanted, equal_nan=True)


def test_other_layouts_no_samples_and_wrong_shapes():
    qkv = inputs(4, 6, 2, 4)[0]
    strided = qkv.transpose(0, 1).contiguous().transpose(0, 1)
    torch.testing.assert_close(short_attention(strided, 2), short_attention_torch(qkv, 2))
    assert short_attention(qkv[:0], 2).shape == (0, 6, 8)
    with pytest.raises(ValueError, match=r"qkv must be \[B, T, 3·5·w\], got \(4, 6, 24\)"):
        short_attention(qkv, 5)
