import importlib
import itertools

import pytest
import torch
from backends import DEVICE, FUSED, assert_as_good_as_torch, gradients, peak_growth, require
from hypothesis import given, settings
from hypothesis import strategies as st

from c2v_sim.ops import orthogonality_loss, prepared_index, projection_orthogonality
from c2v_sim.ops.projection_orthogonality import (
    FORMS,
    _operator,
    projection_orthogonality_torch,
)

SHAPES = [(1, 1), (1, 65), (3, 7), (31, 65), (2, 1024), (1, 1025)]
every_form = pytest.mark.parametrize("form", FORMS)
every_backend = pytest.mark.parametrize("backend", FUSED)


def problem(rows, clients, dim=64, dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed)
    z_p = 3 * torch.randn(rows, dim, generator=g)
    index = 0.2 * torch.randn(clients, dim, generator=g)
    return z_p.to(dtype).to(DEVICE), index.to(dtype).to(DEVICE)


def value_and_gradient(z_p, index, form, backend, **options):
    def loss(z):
        return projection_orthogonality(z, index, form, backend=backend, **options)

    value, (grad,) = gradients(loss, [z_p])
    return value, grad


def check(z_p, index, form, backend):
    require(_operator, backend, z_p, index)
    got, grad = value_and_gradient(z_p, index, form, backend)
    torch32, grad32 = value_and_gradient(z_p, index, form, "torch")
    exact, grad64 = value_and_gradient(z_p.double(), index.double(), form, "torch")
    assert got.dtype == torch.float32
    assert grad.dtype == z_p.dtype
    assert_as_good_as_torch(got, torch32, exact, "loss")
    unit = grad64.abs().max().item() if grad64.numel() and grad64.any() else 1.0
    assert_as_good_as_torch(grad / unit, grad32 / unit, grad64 / unit, "gradient")


@every_form
@every_backend
@pytest.mark.parametrize(("rows", "clients"), SHAPES)
def test_agrees_with_float64(backend, rows, clients, form):
    check(*problem(rows, clients), form, backend)


@every_form
@pytest.mark.parametrize(("rows", "clients"), [(48, 576), (529, 577), (10, 1153)])
def test_native_agrees_at_its_block_sizes(rows, clients, form):
    check(*problem(rows, clients), form, "native")


@every_form
@pytest.mark.parametrize("at_once", [7 * 20, 7 * 64])
def test_columns_of_a_large_index_are_taken_some_at_a_time(monkeypatch, at_once, form):
    z_p, index = problem(7, 65)
    require(_operator, "triton", z_p, index)
    kernels = importlib.import_module("c2v_sim.kernels.index_losses")
    monkeypatch.setattr(kernels, "PRODUCTS", at_once)
    check(z_p, index, form, "triton")
    same = [value_and_gradient(z_p, index, form, "triton") for _ in range(2)]
    assert all(map(torch.equal, *same))


@every_form
@every_backend
def test_paper_width_strides_and_half_storage(backend, form):
    check(*problem(17, 33, dim=512), form, backend)
    wide, index = problem(34, 66, dim=130)
    check(wide[::2, 1:65], index.T[3:67, ::2].T, form, backend)
    for dtype in (torch.bfloat16, torch.float16):
        check(*problem(9, 13, dtype=dtype), form, backend)


@every_form
@every_backend
def test_zero_short_and_orthogonal_vectors(backend, form):
    z_p, index = problem(12, 20)
    z_p[3], index[5], index[19] = 0, 0, 0
    check(z_p, index, form, backend)
    _, grad = value_and_gradient(z_p, index, form, backend)
    assert not grad[3].any()
    assert grad.isfinite().all()
    check(1e-6 * z_p, torch.logspace(-5, 0, 20, device=DEVICE)[:, None] * index, form, backend)
    eye = torch.eye(64, device=DEVICE)
    check(eye[:30], eye[20:60], form, backend)


@every_form
@pytest.mark.parametrize("backend", ["torch", *FUSED])
def test_only_zero_rows_are_nothing(backend, form):
    z_p, index = problem(4, 5)
    require(_operator, backend, z_p, index)
    for z, beta in ((0 * z_p, index), (z_p, 0 * index)):
        value, grad = value_and_gradient(z, beta, form, backend)
        assert value == 0
        assert not grad.any()


@pytest.mark.parametrize("form", ["unit", "raw"])
@every_backend
def test_rows_whose_squares_vanish_have_their_gradient(backend, form):
    """|<z, beta>| is linear in z: however short z is, its gradient is as long."""
    z_p, index = problem(6, 7)
    require(_operator, backend, z_p, index)
    value, grad = value_and_gradient(z_p, index, form, backend)
    short, same = value_and_gradient(1e-25 * z_p, index, form, backend)
    torch.testing.assert_close(short, 1e-25 * value, atol=0, rtol=1e-5)
    torch.testing.assert_close(same, grad)


@every_form
@pytest.mark.parametrize("backend", ["torch", *FUSED])
def test_nothing_is_zero_and_nan_is_seen(backend, form):
    z_p, index = problem(4, 5)
    require(_operator, backend, z_p, index)
    for z, beta in ((z_p, index[:0]), (z_p[:0], index)):
        value, grad = value_and_gradient(z, beta, form, backend)
        assert value == 0
        assert grad.shape == z.shape
        assert not grad.any()
    for bad in (float("nan"), float("inf")):
        for which in (0, 1):
            inputs = [z_p.clone(), index.clone()]
            inputs[which][2, 3] = bad
            value, grad = value_and_gradient(*inputs, form, backend)
            assert not value.isfinite()
            if bad != bad and backend != "torch":  # torch's sign of NaN is 0
                assert grad[2].isnan().all()


@every_backend
def test_cosine_is_the_orthogonality_loss_when_the_index_has_as_many_rows(backend):
    z_p, index = problem(33, 33)
    require(_operator, backend, z_p, index)
    got = projection_orthogonality(z_p, index, "cosine", backend=backend)
    torch.testing.assert_close(got, orthogonality_loss(z_p, index, backend=backend))


@pytest.mark.parametrize("backend", ["torch", *FUSED])
def test_forms_differ_by_lengths_alone(backend):
    """With one row each: raw = |beta| unit = |beta||z| cosine."""
    z_p, index = problem(1, 1)
    require(_operator, backend, z_p, index)
    unit, cosine, raw = (
        projection_orthogonality(z_p, index, form, backend=backend) for form in FORMS
    )
    torch.testing.assert_close(raw, unit * index.norm())
    torch.testing.assert_close(unit, cosine * z_p.norm())


@every_form
@pytest.mark.parametrize("backend", ["torch", *FUSED])
def test_an_index_that_was_prepared_gives_the_same_bits(backend, form):
    z_p, index = problem(9, 11)
    index[4] = 0
    require(_operator, backend, z_p, index)
    prepared = prepared_index(index, form)
    plain = value_and_gradient(z_p, index, form, backend)
    assert all(map(torch.equal, plain, value_and_gradient(z_p, prepared, form, backend)))
    with pytest.raises(ValueError, match="the index was not prepared for form"):
        projection_orthogonality(z_p, prepared, "unit" if form == "cosine" else "cosine")


def test_a_step_computes_no_length_of_the_index(monkeypatch):
    """Form `cosine` needs the lengths of both sides; the index's are those that were prepared."""
    z_p, index = problem(9, 11)
    require(_operator, "triton", z_p, index)
    kernels = importlib.import_module("c2v_sim.kernels.index_losses")
    seen, lengths = [], kernels.lengths
    monkeypatch.setattr(kernels, "lengths", lambda x: (seen.append(x.shape), lengths(x))[1])
    projection_orthogonality(z_p, prepared_index(index, "cosine"), "cosine", backend="triton")
    assert seen == [(1, *z_p.shape)]


def test_prepared_rows_are_of_length_one_or_zero():
    _, index = problem(1, 8)
    index[3] = 0
    index[4], index[5] = 1e-30 * index[4], 1e30 * index[5]
    lengths = prepared_index(index).rows.norm(dim=1)
    assert lengths[3] == 0
    torch.testing.assert_close(lengths[lengths > 0], torch.ones(7, device=DEVICE))
    assert prepared_index(index, "raw").rows is index
    torch.testing.assert_close(
        prepared_index(index, "cosine").lengths.double(), index.double().norm(dim=1)
    )


@every_form
def test_reference_gradcheck(form):
    z_p, index = (x.double() for x in problem(4, 5, 3))
    index[1] = 0
    prepared = prepared_index(index, form)
    assert torch.autograd.gradcheck(
        lambda z: projection_orthogonality_torch(z, *prepared)[0],
        [z_p.requires_grad_()],
    )


@every_form
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31), clients=st.integers(1, 60), scale=st.floats(0.01, 100))
def test_native_invariances(form, seed, clients, scale):
    """Clients in another order, scale moved to the index, or zero columns: the loss follows."""
    z_p, index = problem(7, clients, 20, seed=seed)
    require(_operator, "native", z_p, index)

    def loss(z, beta):
        return projection_orthogonality(z, beta, form, backend="native")

    base = loss(z_p, index)
    order = torch.randperm(clients, generator=torch.Generator().manual_seed(seed))
    pad = torch.nn.functional.pad
    torch.testing.assert_close(loss(z_p, index[order]), base)
    torch.testing.assert_close(loss(pad(z_p, (0, 9)), pad(index, (0, 9))), base)
    moved = loss(z_p / scale, scale * index)
    torch.testing.assert_close(moved, base / scale if form == "unit" else base)


@every_form
def test_native_bits_do_not_depend_on_threads(form):
    z_p, index = (x.cpu() for x in problem(130, 1300))
    require(_operator, "native", z_p, index)
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(value_and_gradient(z_p, index, form, "native"))
    torch.set_num_threads(before)
    for one, other in itertools.pairwise(results):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@every_form
def test_native_memory_does_not_grow_with_the_clients(form):
    """10,000 clients: the loss grows by less than the B×M products would take."""
    z_p, index = (x.cpu() for x in problem(2048, 10_000, dim=32))
    require(_operator, "native", z_p, index)
    prepared = prepared_index(index, form)
    value_and_gradient(z_p, prepared, form, "native")  # lazy initialisation
    grown = peak_growth(lambda: value_and_gradient(z_p, prepared, form, "native"))
    assert grown < 4 * 2048 * 10_000 / 4


@every_form
@every_backend
def test_second_derivative_raises_and_opcheck(backend, form):
    z_p, index = problem(3, 4, 8)
    require(_operator, backend, z_p, index)
    z_p.requires_grad_()
    value = projection_orthogonality(z_p, index, form, backend=backend)
    (grad,) = torch.autograd.grad(value, z_p, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        torch.autograd.grad(grad.sum(), z_p)
    namespace = torch.ops.c2v_sim_triton if backend == "triton" else torch.ops.c2v_sim
    arguments = (z_p, *prepared_index(index, form), True)
    torch.library.opcheck(namespace.projection_orthogonality.default, arguments)


def test_refusals_name_what_was_wrong():
    z_p, index = problem(4, 5)
    with pytest.raises(ValueError, match=r"z_p must be \[B, D\], got \(64,\)"):
        projection_orthogonality(z_p[0], index)
    with pytest.raises(ValueError, match=r"index must be \[M, 64\], got \(5, 63\)"):
        projection_orthogonality(z_p, index[:, 1:])
    for other in (index, prepared_index(index)):
        with pytest.raises(ValueError, match="unknown form 'dot'; known: unit, cosine, raw"):
            projection_orthogonality(z_p, other, "dot")
    with pytest.raises(ValueError, match=r"index is a constant; pass index\.detach\(\)"):
        projection_orthogonality(z_p, index.requires_grad_())
