import functools
import importlib

import pytest
import torch
from backends import DEVICE, FUSED, assert_as_good_as_torch, require
from hypothesis import given, settings
from hypothesis import strategies as st

from c2v_sim.ops import fused_ffn
from c2v_sim.ops.fused_ffn import (
    _backward_operator,
    _operator,
    dropout_threshold,
    fused_ffn_backward_torch,
    fused_ffn_torch,
    keep_mask,
)

NAMES = ("x", "w1", "b1", "w2", "b2")
CLIENTS = [(1, 3, 7, 5), (3, 17, 33, 32), (2, 49, 17, 33), (2, 0, 5, 4)]


def problem(tokens, units=64, channels=32, seed=0, dtype=torch.float32):
    """[x, w1, b1, w2, b2] of a layer with torch.nn.Linear's usual scales, and grad_y."""
    g = torch.Generator().manual_seed(seed)
    sizes = [(tokens, channels), (units, channels), (units,), (channels, units), (channels,)]
    scales = [1, channels**-0.5, 0.1, units**-0.5, 0.1]
    tensors = [s * torch.randn(n, generator=g) for n, s in zip(sizes, scales, strict=True)]
    tensors.append(torch.randn(tokens, channels, generator=g))
    tensors = [t.to(DEVICE, dtype) for t in tensors]
    return tensors[:5], tensors[5]


def without_borderline_units(inputs):
    """The same problem on a grid where W1 x + b1 is exact in float32 and never 0.

    Otherwise some of millions of hidden values lie within rounding of 0, and whether relu passes
    them is chance in torch's float32 as much as here.
    """
    x, w1, b1, w2, b2 = inputs
    grid = [(x * 16).round() / 16, (w1 * 64).round() / 64, ((b1 * 1024).round() + 0.5) / 1024]
    return [*grid, w2, b2]


def run(inputs, grad_y, backend, **options):
    """y and the five gradients."""
    leaves = [t.detach().requires_grad_() for t in inputs]
    y = fused_ffn(*leaves, backend=backend, **options)
    return [y.detach(), *torch.autograd.grad(y, leaves, grad_y)]


def seed_tensor(seed):
    return torch.tensor(seed, device=DEVICE)


def kept_by(backend, tokens, units, dropout, seed, channels=32):
    """The units that a backend keeps, read off through one-hot rows of w2."""
    x, w1 = torch.zeros(tokens, channels), torch.zeros(units, channels)
    b1, b2 = torch.ones(units), torch.zeros(channels)
    kept = torch.zeros(tokens, units, dtype=torch.bool)
    for first in range(0, units, channels):
        w2 = torch.eye(units)[first : first + channels]
        w2 = torch.cat([w2, torch.zeros(channels - len(w2), units)])
        args = [t.to(DEVICE) for t in (x, w1, b1, w2, b2)]
        y = fused_ffn(*args, dropout=dropout, seed=seed, backend=backend)
        width = min(channels, units - first)
        kept[:, first : first + width] = (y != 0).cpu()[:, :width]
    return kept


@pytest.fixture
def kernels():
    require(_operator, "triton", *problem(1)[0])
    return importlib.import_module("c2v_sim.kernels.fused_ffn")


@pytest.mark.parametrize("tokens", [63, 64, 65, 129])
def test_large_blocks_agree_with_float64(kernels, monkeypatch, tokens):
    """With few tokens blocks are small, so that there are many."""
    monkeypatch.setattr(kernels, "PROGRAMS", 1)
    assert [kernels._block_tokens(most, tokens) for most in (64, 32)] == [64, 32]
    test_agrees_with_float64("triton", 0.1, tokens, 33, 32)


def test_the_grid_covers_a_gpu_where_the_tokens_suffice(kernels):
    blocks = {n: kernels._block_tokens(64, n) for n in (100, 4096, 216 * 32, 216 * 64 - 63, 10**6)}
    assert blocks == {100: 16, 4096: 16, 216 * 32: 32, 216 * 64 - 63: 64, 10**6: 64}
    for tokens in range(216 * 16, 30_000, 997):
        assert -(-tokens // kernels._block_tokens(64, tokens)) >= 216


@pytest.mark.parametrize("backend", FUSED)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(
    ("tokens", "units", "channels"),
    [
        (1, 1, 32), (2, 17, 32), (31, 64, 32), (47, 47, 32), (48, 48, 32), (49, 49, 32),
        (63, 95, 32), (64, 96, 32), (65, 97, 32), (129, 33, 32), (5, 16, 1), (7, 31, 16),
        (33, 40, 31), (20, 35, 33), (35, 50, 64), (0, 8, 32),
    ],
)  # fmt: skip
def test_agrees_with_float64(backend, dropout, tokens, units, channels):
    inputs, grad_y = problem(tokens, units, channels)
    require(_operator, backend, *inputs)
    options = {"dropout": dropout, "seed": 11}
    got = run(inputs, grad_y, backend, **options)
    torch32 = run(inputs, grad_y, "torch", **options)
    exact = run([t.double() for t in inputs], grad_y.double(), "torch", **options)
    for name, *results in zip(("y", *NAMES), got, torch32, exact, strict=True):
        assert_as_good_as_torch(*results, what=name)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_native_at_full_size(dropout):
    """DSA-IGN's own layer, with several chunks of tokens in backward."""
    inputs, grad_y = problem(1200, 2048)
    inputs = without_borderline_units(inputs)
    require(_operator, "native", *inputs)
    got = run(inputs, grad_y, "native", dropout=dropout)
    torch32 = run(inputs, grad_y, "torch", dropout=dropout)
    exact = run([t.double() for t in inputs], grad_y.double(), "torch", dropout=dropout)
    for name, *results in zip(("y", *NAMES), got, torch32, exact, strict=True):
        assert_as_good_as_torch(*results, what=name, atol=0.0)


def test_native_with_more_tokens_than_32_chunks_of_the_usual_size():
    inputs, grad_y = problem(20_011, 19, 3)
    inputs = without_borderline_units(inputs)
    require(_operator, "native", *inputs)
    got = run(inputs, grad_y, "native", dropout=0.5)
    torch32 = run(inputs, grad_y, "torch", dropout=0.5)
    exact = run([t.double() for t in inputs], grad_y.double(), "torch", dropout=0.5)
    for name, *results in zip(("y", *NAMES), got, torch32, exact, strict=True):
        assert_as_good_as_torch(*results, what=name)


def test_triton_sums_slices_of_tokens():
    inputs, grad_y = problem(1030, 20, 16)
    require(_operator, "triton", *inputs)
    got = run(inputs, grad_y, "triton", dropout=0.2)
    torch32 = run(inputs, grad_y, "torch", dropout=0.2)
    exact = run([t.double() for t in inputs], grad_y.double(), "torch", dropout=0.2)
    for name, *results in zip(("y", *NAMES), got, torch32, exact, strict=True):
        assert_as_good_as_torch(*results, what=name)


@pytest.mark.parametrize("backend", ["torch", *FUSED])
def test_leading_dimensions_and_strides(backend):
    inputs, grad_y = problem(60)
    require(_operator, backend, *inputs)
    plain = run(inputs, grad_y, backend, dropout=0.1, seed=3)
    shaped = [inputs[0].reshape(3, 4, 5, 32), *inputs[1:]]
    got = run(shaped, grad_y.reshape(3, 4, 5, 32), backend, dropout=0.1, seed=3)
    assert got[0].shape == got[1].shape == (3, 4, 5, 32)
    for a, b in zip(plain, got, strict=True):
        assert torch.equal(a, b.reshape(a.shape))
    strided = [
        t.mT.contiguous().mT if t.dim() == 2 else torch.stack([t, t], 1)[:, 1] for t in inputs
    ]
    assert not any(t.is_contiguous() for t in strided)
    got = run(strided, grad_y.T.contiguous().T, backend, dropout=0.1, seed=3)
    for a, b in zip(plain, got, strict=True):
        torch.testing.assert_close(a, b)


def test_gradcheck_of_the_reference():
    inputs, _ = problem(5, 7, 3, dtype=torch.float64)
    leaves = [t.requires_grad_() for t in inputs]
    layer = functools.partial(fused_ffn, dropout=0.4, seed=2)
    assert torch.autograd.gradcheck(layer, leaves)
    assert torch.autograd.gradgradcheck(layer, leaves)


@pytest.mark.parametrize("dropout", [0.0, 0.3, 1.0])
def test_written_gradients_are_those_of_autograd(dropout):
    inputs, grad_y = problem(9, 21, 5, dtype=torch.float64)
    expected = run(inputs, grad_y, "torch", dropout=dropout, seed=6)[1:]
    args = (grad_y, *inputs[:4], seed_tensor(6), dropout, True, True)
    for name, a, b in zip(NAMES, fused_ffn_backward_torch(*args), expected, strict=True):
        torch.testing.assert_close(a, b, msg=name)


@pytest.mark.parametrize("backend", FUSED)
@pytest.mark.parametrize("wanted", [("x",), ("w1",), ("b1",), ("w2",), ("b2",), ("x", "b2")])
def test_gradients_asked_for_singly(backend, wanted):
    inputs, grad_y = problem(50, 40)
    require(_operator, backend, *inputs)
    full = dict(zip(NAMES, run(inputs, grad_y, backend)[1:], strict=True))
    leaves = [t.detach().requires_grad_(n in wanted) for n, t in zip(NAMES, inputs, strict=True)]
    fused_ffn(*leaves, backend=backend).backward(grad_y)
    for name, leaf in zip(NAMES, leaves, strict=True):
        assert (leaf.grad is not None) == (name in wanted)
        assert leaf.grad is None or torch.equal(leaf.grad, full[name]), name


# ---- dropout ------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["torch", *FUSED])
@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1])
def test_every_backend_keeps_exactly_the_units_of_the_definition(backend, seed):
    tokens, units, dropout = 67, 70, 0.3
    require(_operator, backend, torch.empty(1, device=DEVICE))
    threshold, _ = dropout_threshold(dropout)
    expected = keep_mask(tokens, units, threshold, torch.tensor(seed))
    assert torch.equal(kept_by(backend, tokens, units, dropout, seed), expected)


def test_native_mask_over_many_blocks():
    require(_operator, "native", torch.empty(1))
    expected = keep_mask(150, 1024, dropout_threshold(0.1)[0], torch.tensor(9))
    assert torch.equal(kept_by("native", 150, 1024, 0.1, 9), expected)


def test_mask_values_are_fixed():
    """A change of the definition would change every stored experiment."""
    mask = keep_mask(3, 20, 32768, torch.tensor(42))
    rows = ["".join("1" if k else "0" for k in row) for row in mask.tolist()]
    assert rows == ["01010110010110010000", "11101110101111000000", "10100011101110011001"]


def test_mask_is_statistically_independent():
    tokens, units = 2048, 512
    n = tokens * units
    dropout = 0.1
    threshold, _ = dropout_threshold(dropout)
    p = threshold / 65536
    masks = [1.0 - keep_mask(tokens, units, threshold, torch.tensor(s)).double() for s in range(3)]
    z = [(m - p) / (p * (1 - p)) ** 0.5 for m in masks]  # mean 0 and variance 1 if all is well
    five = 5 / n**0.5  # five standard deviations of a mean of n such products
    for m in z:
        assert abs(m.mean()) < five
        assert abs(m.mean(0)).max() < 5.5 / tokens**0.5
        assert abs(m.mean(1)).max() < 5.5 / units**0.5
        for lag in (1, 2, 7, 8, 9, 16, 64, 256):  # 8: the two halves of one hash
            assert abs((m[:, lag:] * m[:, :-lag]).mean()) < 1.5 * five, f"units {lag} apart"
            assert abs((m[lag:] * m[:-lag]).mean()) < 1.5 * five, f"tokens {lag} apart"
            assert abs((m[lag:, lag:] * m[:-lag, :-lag]).mean()) < 2 * five, f"diagonal {lag}"
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert abs((z[i] * z[j]).mean()) < five, f"seeds {i} and {j}"
        assert abs((z[i][1:] * z[j][:-1]).mean()) < five, f"seeds {i} and {j}, next token"


@pytest.mark.parametrize("backend", ["torch", *FUSED])
def test_dropout_keeps_the_expectation(backend):
    """With relu inactive, y's mean over seeds is y without dropout."""
    channels, units = 4, 256
    args = [torch.ones(8, channels), torch.ones(units, channels), torch.ones(units)]
    args += [torch.ones(channels, units) / units, torch.zeros(channels)]
    args = [t.to(DEVICE) for t in args]
    require(_operator, backend, *args)
    options = {"dropout": 0.25, "backend": backend}
    mean = torch.stack([fused_ffn(*args, seed=s, **options)[:, 0] for s in range(20)]).mean()
    deviation = (0.25 / 0.75 / (units * 8 * 20)) ** 0.5 * (channels + 1)
    assert abs(mean.item() - (channels + 1)) < 4 * deviation


@pytest.mark.parametrize("backend", ["torch", *FUSED])
def test_dropout_of_everything_leaves_the_bias(backend):
    inputs, grad_y = problem(10, 20)
    require(_operator, backend, *inputs)
    y, *grads = run(inputs, grad_y, backend, dropout=1.0)
    assert torch.equal(y, inputs[4].expand_as(y))
    assert all(g.abs().max() == 0 for g in grads[:4])


@pytest.mark.parametrize("backend", ["torch", *FUSED])
def test_seed_as_a_tensor(backend):
    inputs, _ = problem(20)
    require(_operator, backend, *inputs)
    options = {"dropout": 0.5, "backend": backend}
    by_int = fused_ffn(*inputs, seed=7, **options)
    assert torch.equal(by_int, fused_ffn(*inputs, seed=seed_tensor([7]), **options))
    assert not torch.equal(by_int, fused_ffn(*inputs, seed=8, **options))


@pytest.mark.parametrize("backend", FUSED)
def test_a_seed_changed_before_backward_is_found(backend):
    inputs, grad_y = problem(4)
    require(_operator, backend, *inputs)
    seed = seed_tensor(1)
    y = fused_ffn(*[t.requires_grad_() for t in inputs], dropout=0.5, seed=seed, backend=backend)
    seed += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward(grad_y)


# ---- properties and edges -----------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(
    tokens=st.integers(1, 150),
    units=st.integers(1, 130),
    channels=st.integers(1, 70),
    dropout=st.sampled_from([0.0, 0.1, 0.9]),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_native_properties(tokens, units, channels, dropout, seed):
    """Any size: a token does not see the others, and padding with units of zero changes nothing."""
    inputs, _ = problem(tokens, units, channels, seed=tokens)
    if _operator.unavailable("native", *inputs):
        pytest.skip("no native kernel")
    options = {"dropout": dropout, "seed": seed, "backend": "native"}
    y = fused_ffn(*inputs, **options)
    first = fused_ffn(inputs[0][:1], *inputs[1:], **options)
    assert torch.equal(first, y[:1])
    x, w1, b1, w2, b2 = inputs
    pad = torch.nn.functional.pad
    padded = (pad(w1, (0, 0, 0, 5)), pad(b1, (0, 5)), pad(w2, (0, 5)))
    torch.testing.assert_close(fused_ffn(x, *padded, b2, **options), y)
    torch.testing.assert_close(y, fused_ffn(*inputs, dropout=dropout, seed=seed, backend="torch"))


@pytest.mark.parametrize("backend", FUSED)
def test_relu_has_no_gradient_at_zero(backend):
    inputs, grad_y = problem(6, 20)
    require(_operator, backend, *inputs)
    inputs[1].zero_()
    inputs[2].zero_()
    for a, b in zip(run(inputs, grad_y, backend), run(inputs, grad_y, "torch"), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("backend", FUSED)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", [*NAMES, "grad_y"])
def test_nan_and_infinity_propagate_as_in_torch(backend, where, value):
    inputs, grad_y = problem(50, 20)
    require(_operator, backend, *inputs)
    tensor = grad_y if where == "grad_y" else inputs[NAMES.index(where)]
    tensor.view(-1)[3] = value
    got, expected = (run(inputs, grad_y, b) for b in (backend, "torch"))
    for name, a, b in zip(("y", *NAMES), got, expected, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(("tokens", "units"), [(1, 1), (49, 97), (1200, 100), (3000, 48)])
def test_native_bits_do_not_depend_on_threads(tokens, units, dropout):
    inputs, grad_y = problem(tokens, units)
    inputs, grad_y = [t.cpu() for t in inputs], grad_y.cpu()
    require(_operator, "native", *inputs)
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(run(inputs, grad_y, "native", dropout=dropout))
    torch.set_num_threads(before)
    for other in results[1:]:
        for name, a, b in zip(("y", *NAMES), results[0], other, strict=True):
            assert torch.equal(a, b), name


@pytest.mark.parametrize("backend", FUSED)
def test_only_inputs_are_kept_for_backward(backend):
    inputs, _ = problem(40, 50)
    require(_operator, backend, *inputs)
    leaves = [t.requires_grad_() for t in inputs]
    seed, saved = seed_tensor(1), []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        fused_ffn(*leaves, dropout=0.1, seed=seed, backend=backend)
    assert {t.data_ptr() for t in saved} <= {t.data_ptr() for t in (*inputs, seed)}


def test_refusals_name_what_was_wrong():
    (x, w1, b1, w2, b2), _ = problem(3, 8, 4)
    with pytest.raises(ValueError, match=r"x must be \[..., C\] with C > 0, got \(\)"):
        fused_ffn(x[0, 0], w1, b1, w2, b2)
    with pytest.raises(ValueError, match=r"w1 must be \[F, 4\] or.* F > 0, got \(4, 8\)"):
        fused_ffn(x, w1.T, b1, w2, b2)
    with pytest.raises(ValueError, match=r"w2 must be \[4, 8\] for w1 \[8, 4\], got \(8, 4\)"):
        fused_ffn(x, w1, b1, w2.T, b2)
    with pytest.raises(ValueError, match=r"b1 must be \[8\].*got \(4,\)"):
        fused_ffn(x, w1, b2, w2, b2)
    with pytest.raises(ValueError, match=r"w1 must be torch.float32 on .* like x"):
        fused_ffn(x, w1.double(), b1, w2, b2)
    with pytest.raises(ValueError, match=r"dropout must be in \[0, 1\], got 1.5"):
        fused_ffn(x, w1, b1, w2, b2, dropout=1.5)
    with pytest.raises(ValueError, match=r"dropout must be in \[0, 1\], got nan"):
        fused_ffn(x, w1, b1, w2, b2, dropout=float("nan"))
    with pytest.raises(ValueError, match=r"seed tensor must be int64, of one element"):
        fused_ffn(x, w1, b1, w2, b2, seed=torch.tensor([1.0], device=DEVICE))
    with pytest.raises(RuntimeError, match=r"takes float32, not bfloat16"):
        fused_ffn(*(t.bfloat16() for t in (x, w1, b1, w2, b2)), backend="native")
    half = [t.bfloat16() for t in (x, w1, b1, w2, b2)]
    assert torch.equal(
        fused_ffn(*half), fused_ffn_torch(*half, seed_tensor(0), 0.0)
    )  # no fused backend for bfloat16: the reference serves


def test_triton_refuses_wide_layers():
    inputs, _ = problem(3, 8, 65)
    require(_operator, "triton", *inputs)
    with pytest.raises(ValueError, match="at most 64 channels, got 65"):
        fused_ffn(*inputs, backend="triton")


# ---- torch's machinery --------------------------------------------------------------------------


@pytest.mark.parametrize("backend", FUSED)
def test_second_derivative_is_refused(backend):
    inputs, grad_y = problem(3)
    require(_operator, backend, *inputs)
    leaves = [t.requires_grad_() for t in inputs]
    y = fused_ffn(*leaves, backend=backend)
    (grad,) = torch.autograd.grad((y * grad_y).sum(), leaves[0], create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative; use backend='torch'"):
        grad.sum().backward()


@pytest.mark.parametrize("backend", FUSED)
def test_opcheck(backend):
    inputs, grad_y = problem(5, 20)
    require(_operator, backend, *inputs)
    namespace = torch.ops.c2v_sim_triton if backend == "triton" else torch.ops.c2v_sim
    leaves = [t.detach().requires_grad_() for t in inputs]
    torch.library.opcheck(namespace.fused_ffn.default, (*leaves, seed_tensor(1), 0.1))
    require(_backward_operator, backend, *inputs)
    args = (grad_y, *inputs[:4], seed_tensor(1), 0.1)
    for needs in ((True, True), (False, True), (True, False)):
        torch.library.opcheck(namespace.fused_ffn_backward.default, (*args, *needs))


def test_compiled_graph_has_no_breaks():
    inputs, grad_y = problem(12)
    require(_operator, "native", *inputs)

    def layer(*args):
        return fused_ffn(*args, dropout=0.2, seed=5, backend="native")

    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    leaves = [t.detach().requires_grad_() for t in inputs]
    y = compiled(*leaves)
    got = [y.detach(), *torch.autograd.grad(y, leaves, grad_y)]
    for a, b in zip(got, run(inputs, grad_y, "native", dropout=0.2, seed=5), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("backend", FUSED)
@pytest.mark.parametrize(("clients", "tokens", "units", "channels"), CLIENTS)
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_clients_have_weights_tokens_and_seeds_of_their_own(
    backend, clients, tokens, units, channels, dropout
):
    """As good as torch in float64, and each client as it would be alone."""
    apart = [problem(tokens, units, channels, seed=i) for i in range(clients)]
    inputs = [torch.stack(of_all) for of_all in zip(*(p[0] for p in apart), strict=True)]
    grad_y = torch.stack([p[1] for p in apart])
    require(_operator, backend, *inputs)
    options = {"dropout": dropout, "seed": torch.arange(5, 5 + clients, device=DEVICE)}
    got = run(inputs, grad_y, backend, **options)
    torch32 = run(inputs, grad_y, "torch", **options)
    exact = run([t.double() for t in inputs], grad_y.double(), "torch", **options)
    for name, *results in zip(("y", *NAMES), got, torch32, exact, strict=True):
        assert_as_good_as_torch(*results, what=name)
    for i, (own, grad) in enumerate(apart):
        alone = run(own, grad, backend, dropout=dropout, seed=5 + i)
        assert all(torch.equal(a[i], b) for a, b in zip(got, alone, strict=True))


def test_clients_that_do_not_fit_are_refused():
    (x, w1, b1, w2, b2), _ = problem(4)
    clients = [torch.stack([t, t]) for t in (w1, b1, w2, b2)]
    with pytest.raises(ValueError, match=r"x must be \[2, ..., 32\] for w1 \[2, 64, 32\]"):
        fused_ffn(x, *clients)
    with pytest.raises(ValueError, match=r"b1 must be \[2, 64\] for w1"):
        fused_ffn(torch.stack([x, x]), clients[0], b1, *clients[2:])
    with pytest.raises(ValueError, match="must be int64, of 2 elements"):
        fused_ffn(torch.stack([x, x]), *clients, seed=seed_tensor(1))
