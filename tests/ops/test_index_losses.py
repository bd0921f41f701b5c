# ruff: noqa: E741  (l is the name in the specification)

import importlib
import itertools

import pytest
import torch
from backends import DEVICE, FUSED, SIZES, assert_as_good_as_torch, require
from hypothesis import given, settings
from hypothesis import strategies as st

from c2v_sim.ops import diversity_loss, index_losses, orthogonality_loss, similarity_loss
from c2v_sim.ops.index_losses import _operator, cosines_torch, index_losses_torch

SINGLE = {"sim": similarity_loss, "orth": orthogonality_loss, "div": diversity_loss}
INPUTS = {"sim": (0, 2), "orth": (0, 1), "div": (1,)}  # which of z, u, l


def problem(rows, dim=64, dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed)
    scales = (3.0, 0.5, 1.0)
    return [(s * torch.randn(rows, dim, generator=g)).to(dtype).to(DEVICE) for s in scales]


def losses_and_gradients(inputs, backend, weights=(1.0, 1.0, 1.0)):
    """The three losses, and the gradients of their weighted sum for z, u, l."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    losses = index_losses(*leaves, backend=backend)
    total = sum(w * loss for w, loss in zip(weights, losses, strict=True))
    return torch.stack(losses).detach(), torch.autograd.grad(total, leaves)


def check(inputs, backend, weights=(1.0, 1.0, 1.0)):
    """Against float64, gradients as fractions of the largest, or the absolute slack hides them."""
    require(_operator, backend, *inputs)
    got, got_grads = losses_and_gradients(inputs, backend, weights)
    torch32, torch32_grads = losses_and_gradients(inputs, "torch", weights)
    exact, exact_grads = losses_and_gradients([x.double() for x in inputs], "torch", weights)
    assert got.dtype == torch.float32
    assert_as_good_as_torch(got, torch32, exact, "losses")
    for name, x, a, b, c in zip("zul", inputs, got_grads, torch32_grads, exact_grads, strict=True):
        assert a.dtype == x.dtype
        unit = c.abs().max().item() if c.numel() and c.abs().max() > 0 else 1.0
        assert_as_good_as_torch(a / unit, b / unit, c / unit, f"gradient for {name}")


CASES = [("native", n) for n in (0, *SIZES)] + [("triton", n) for n in (0, 1, 3, 31)]


@pytest.mark.parametrize(("backend", "rows"), CASES)
def test_agrees_with_float64(backend, rows):
    check(problem(rows), backend, weights=(1.0, 2.0, 0.5))


@pytest.mark.parametrize("at_once", [13, 13 * 7])
def test_columns_are_taken_some_at_a_time_in_a_large_batch(monkeypatch, at_once):
    inputs = problem(13, dim=7)
    require(_operator, "triton", *inputs)
    kernels = importlib.import_module("c2v_sim.kernels.index_losses")
    monkeypatch.setattr(kernels, "PRODUCTS", at_once)
    check(inputs, "triton", weights=(1.0, 2.0, 0.5))


@pytest.mark.parametrize("rows", [47, 48, 49, 528, 529, 1100])
def test_native_agrees_at_its_block_sizes(rows):
    check(problem(rows, dim=96), "native")


@pytest.mark.parametrize("backend", FUSED)
@pytest.mark.parametrize("dim", [2, 7, 63, 65, 257, 512])
def test_any_width(backend, dim):
    check(problem(19, dim), backend)


@pytest.mark.parametrize("backend", FUSED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_storage_is_computed_in_float32(backend, dtype):
    check(problem(33, dtype=dtype), backend)


@pytest.mark.parametrize("backend", FUSED)
def test_non_contiguous_inputs(backend):
    wide = problem(66, 130)
    check([wide[0][::2, 1:65], wide[1].T[:64, 2:35].T, wide[2][:33, ::2][:, :64]], backend)


@pytest.mark.parametrize("backend", FUSED)
@pytest.mark.parametrize("loss", SINGLE)
def test_a_single_loss_is_a_slice_of_all(backend, loss):
    inputs = problem(37)
    require(_operator, backend, *inputs)
    which = list(SINGLE).index(loss)
    every, grads = losses_and_gradients(inputs, backend, [float(i == which) for i in range(3)])
    leaves = [inputs[i].clone().requires_grad_() for i in INPUTS[loss]]
    value = SINGLE[loss](*leaves, backend=backend)
    assert torch.equal(value, every[which])
    for i, grad in zip(INPUTS[loss], torch.autograd.grad(value, leaves), strict=True):
        assert torch.equal(grad, grads[i])


@pytest.mark.parametrize("backend", FUSED)
def test_zero_vectors_have_cosine_zero_and_no_gradient(backend):
    z, u, l = problem(20)
    for x, row in ((z, 3), (u, 5), (u, 11), (l, 7)):
        x[row] = 0
    check([z, u, l], backend)
    _, (of_z, of_u, of_l) = losses_and_gradients([z, u, l], backend)
    for grad, row in ((of_z, 3), (of_u, 5), (of_u, 11), (of_l, 7)):
        assert torch.equal(grad[row], torch.zeros_like(grad[row]))
    zeros = [torch.zeros(5, 64, device=DEVICE)] * 3
    values, grads = losses_and_gradients(zeros, backend)
    assert torch.allclose(values, torch.tensor([1.0, 0.0, torch.log(torch.tensor(4.0))]).to(values))
    assert all(not g.any() for g in grads)


@pytest.mark.parametrize("backend", FUSED)
def test_orthogonal_and_equal_vectors(backend):
    """Cosines that are exactly 0 have sign 0; and those that are exactly ±1."""
    eye = torch.eye(64, device=DEVICE)
    check([eye[:40], eye[10:50], eye[:40]], backend)
    check([eye[:40], -eye[:40], eye[:40].flip(0)], backend)
    z = problem(9)[0]
    check([z, z, -z], backend)


@pytest.mark.parametrize("backend", FUSED)
@pytest.mark.parametrize("scale", [1e-3, 1e-5, 1e-7])
def test_short_vectors_meet_the_smallest_denominator(backend, scale):
    """|a||b| < 1e-8: cos is <a, b>/1e-8. Rows on both sides of the limit."""
    spread = torch.logspace(-2, 2, 21, device=DEVICE)[:, None]
    check([scale * spread * x for x in problem(21)], backend)


@pytest.mark.parametrize("backend", FUSED)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_nan_and_inf_reach_what_depends_on_them(backend, bad, which):
    inputs = problem(9)
    inputs[which][4, 6] = bad
    require(_operator, backend, *inputs)
    losses, grads = losses_and_gradients(inputs, backend)
    touched = {i for name, i in zip(SINGLE, range(3), strict=True) if which in INPUTS[name]}
    for i, loss in enumerate(losses):
        assert loss.isnan() == (i in touched), f"loss {i}"
    assert grads[which][4].isnan().all()


@pytest.mark.parametrize("backend", FUSED)
def test_a_length_that_overflows_is_nan_not_zero(backend):
    z, u, l = problem(5)
    require(_operator, backend, z, u, l)
    z[2] = 1e30
    losses, _ = losses_and_gradients([z, u, l], backend)
    assert losses[:2].isnan().all()
    assert losses[2].isfinite()


@pytest.mark.parametrize("backend", ["torch", *FUSED])
def test_losses_of_none_and_of_one_row(backend):
    none, one = problem(0), problem(1)
    require(_operator, backend, *none)
    values, grads = losses_and_gradients(none, backend)
    assert not values.any()
    assert all(g.shape == (0, 64) for g in grads)
    assert losses_and_gradients(one, backend)[0][2] == 0
    leaf = one[1].clone().requires_grad_()
    (grad,) = torch.autograd.grad(diversity_loss(leaf, backend=backend), leaf)
    assert not grad.any()


def test_reference_is_the_formula_written_out():
    z, u, l = (x.double() for x in problem(6, 5))
    cos = torch.nn.functional.cosine_similarity
    sim, orth, div = index_losses(z, u, l, backend="torch")
    assert torch.allclose(sim, (1 - cos(z, l)).mean())
    pairs = list(itertools.product(range(6), repeat=2))
    assert torch.allclose(orth, sum(cos(z[j], u[k], dim=0).abs() for j, k in pairs) / 36)
    rows = [sum(cos(u[j], u[k], dim=0).exp() for k in range(6) if k != j).log() for j in range(6)]
    assert torch.allclose(div, torch.stack(rows).mean())
    z, u = 3e-5 * z, 1e-4 * u  # norms on both sides of the smallest denominator
    norms = z.norm(dim=1)[:, None] * u.norm(dim=1)
    assert norms.min() < 1e-8 < norms.max()
    assert torch.allclose(cosines_torch(z, u), z @ u.T / norms.clamp(min=1e-8))


def test_reference_gradcheck():
    def losses(z, u, l):
        return index_losses_torch(z, u, l)[0]

    inputs = [x.double().requires_grad_() for x in problem(4, 3)]
    assert torch.autograd.gradcheck(losses, inputs)
    assert torch.autograd.gradgradcheck(losses, inputs)
    with torch.no_grad():
        inputs[0][1] *= 1e-9  # below the smallest denominator with every row of u
    assert torch.autograd.gradcheck(losses, inputs, eps=1e-12, atol=1e-3, rtol=1e-3)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31), rows=st.integers(2, 40), scale=st.floats(0.01, 100))
def test_native_invariances(seed, rows, scale):
    """Rescaled rows, permuted batches and zero columns leave the losses as they are."""
    z, u, l = problem(rows, 30, seed=seed)
    require(_operator, "native", z, u, l)
    base = torch.stack(index_losses(z, u, l, backend="native"))
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
    padded = [torch.nn.functional.pad(x, (0, 11)) for x in (z, u, l)]
    for other in ([scale * z, u / scale, l], [x[order] for x in (z, u, l)], padded):
        torch.testing.assert_close(torch.stack(index_losses(*other, backend="native")), base)


@pytest.mark.parametrize("rows", [1, 33, 130, 600])
def test_native_bits_do_not_depend_on_threads(rows):
    inputs = [x.cpu() for x in problem(rows)]
    require(_operator, "native", *inputs)
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        values, grads = losses_and_gradients(inputs, "native")
        results.append([values, *grads])
    torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("backend", FUSED)
def test_no_gradient_is_formed_when_nobody_asks(backend):
    z, u, l = problem(10)
    require(_operator, backend, z, u, l)
    z.requires_grad_()
    with torch.no_grad():
        quiet = index_losses(z, u, l, backend=backend)
    assert not quiet[0].requires_grad
    assert torch.equal(torch.stack(quiet), torch.stack(index_losses(z, u, l, backend=backend)))


@pytest.mark.parametrize("backend", FUSED)
def test_second_derivative_raises(backend):
    inputs = [x.requires_grad_() for x in problem(5)]
    require(_operator, backend, *inputs)
    (first,) = torch.autograd.grad(
        index_losses(*inputs, backend=backend)[1], inputs[0], create_graph=True
    )
    with pytest.raises(RuntimeError, match="cannot be differentiated twice; use backend='torch'"):
        torch.autograd.grad(first.square().sum(), inputs[0])


@pytest.mark.parametrize("backend", FUSED)
def test_opcheck(backend):
    inputs = [x.requires_grad_() for x in problem(5, 8)]
    require(_operator, backend, *inputs)
    namespace = torch.ops.c2v_sim_triton if backend == "triton" else torch.ops.c2v_sim
    torch.library.opcheck(namespace.index_losses.default, (*inputs, None, 7, True))
    torch.library.opcheck(namespace.index_losses.default, (*problem(5, 8), None, 5, False))
    clients, counts = [torch.stack([x, x]).detach() for x in inputs], torch.tensor([5, 2])
    arguments = (*(x.requires_grad_() for x in clients), counts.to(DEVICE), 7, True)
    torch.library.opcheck(namespace.index_losses.default, arguments)


def test_compiles():
    inputs = [x.requires_grad_() for x in problem(9)]
    compiled = torch.compile(index_losses, fullgraph=True, backend="aot_eager")
    got, expected = compiled(*inputs), index_losses(*inputs)
    assert torch.equal(torch.stack(got), torch.stack(expected))
    for a, b in zip(torch.autograd.grad(sum(got), inputs),
                    torch.autograd.grad(sum(expected), inputs), strict=True):  # fmt: skip
        assert torch.equal(a, b)


def test_refusals_name_what_was_wrong():
    z, u, l = problem(4)
    with pytest.raises(ValueError, match=r"index_losses: z must be \[B, D\], got \(64,\)"):
        index_losses(z[0], u, l)
    with pytest.raises(ValueError, match=r"u must have the shape of z, \(4, 64\), got \(3, 64\)"):
        orthogonality_loss(z, u[:3])
    with pytest.raises(ValueError, match=r"similarity_loss: l must be \[B, D\]"):
        similarity_loss(z, l[0])
    with pytest.raises(RuntimeError, match=r"takes float32, bfloat16, float16, not float64"):
        diversity_loss(u.double(), backend="native")


COUNTS = [(5, 0, 1, 3), (13,), (2, 12, 13, 7)]


@pytest.mark.parametrize("backend", FUSED)
@pytest.mark.parametrize("counts", COUNTS)
@pytest.mark.parametrize("scale", [1.0, 1e-5])
def test_clients_have_losses_of_their_first_rows(backend, counts, scale):
    """As good as torch in float64; what the padding holds makes no difference, and it takes no
    gradient."""
    number = torch.tensor(counts, device=DEVICE)
    of_each = zip(*(problem(13, 7, seed=i) for i in range(len(counts))), strict=True)
    inputs = [scale * torch.stack(x) for x in of_each]
    require(_operator, backend, *inputs)
    along = torch.linspace(0.5, 2, 3 * len(counts), device=DEVICE).view(-1, 3)

    def run(inputs, backend):
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        losses = torch.stack(index_losses(*leaves, number, backend=backend), dim=1)
        return [losses.detach(), *torch.autograd.grad(losses, leaves, along.to(losses))]

    got, torch32 = run(inputs, backend), run(inputs, "torch")
    exact = run([x.double() for x in inputs], "torch")
    for name, a, b, c in zip(("losses", *"zul"), got, torch32, exact, strict=True):
        unit = max(c.abs().max().item(), 1e-30)
        assert_as_good_as_torch(a / unit, b / unit, c / unit, name)
    padding = torch.arange(13, device=DEVICE) >= number[:, None]
    assert all(not grad[padding].any() for grad in got[1:])
    for x in inputs:
        x[padding] = 7.0
    assert all(map(torch.equal, got, run(inputs, backend)))


def test_clients_that_do_not_fit_are_refused():
    z, u, l = problem(4)
    with pytest.raises(ValueError, match=r"counts must be int64 \[2\] on"):
        index_losses(*(torch.stack([x, x]) for x in (z, u, l)), torch.tensor([1.0, 2.0]))
    with pytest.raises(ValueError, match=r"z must be \[k, B, D\] with counts, got \(4, 64\)"):
        index_losses(z, u, l, torch.ones(4, dtype=torch.int64, device=DEVICE))
