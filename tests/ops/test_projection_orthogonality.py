import pytest
import torch
from backends import DEVICE, FUSED, assert_as_good_as_torch, gradients, require
from hypothesis import given, settings
from hypothesis import strategies as st

from c2v_sim.ops import orthogonality_loss, projection_orthogonality
from c2v_sim.ops.projection_orthogonality import _operator, projection_orthogonality_torch

SHAPES = [(1, 1), (3, 7), (31, 65), (64, 63), (65, 130), (129, 5)]


def problem(rows, clients, dim=64, dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed)
    z_p = 3 * torch.randn(rows, dim, generator=g)
    index = 0.2 * torch.randn(clients, dim, generator=g)
    return z_p.to(dtype).to(DEVICE), index.to(dtype).to(DEVICE)


def check(z_p, index, backend):
    require(_operator, backend, z_p, index)

    def run(z, beta, backend):
        return gradients(lambda z: projection_orthogonality(z, beta, backend=backend), [z])

    got, (grad,) = run(z_p, index, backend)
    torch32, (grad32,) = run(z_p, index, "torch")
    exact, (grad64,) = run(z_p.double(), index.double(), "torch")
    assert got.dtype == torch.float32
    assert grad.dtype == z_p.dtype
    assert_as_good_as_torch(got, torch32, exact, "loss")
    unit = grad64.abs().max().item() if grad64.numel() and grad64.any() else 1.0
    assert_as_good_as_torch(grad / unit, grad32 / unit, grad64 / unit, "gradient")


@pytest.mark.parametrize("backend", FUSED)
@pytest.mark.parametrize(("rows", "clients"), SHAPES)
def test_agrees_with_float64(backend, rows, clients):
    check(*problem(rows, clients), backend)


@pytest.mark.parametrize(("rows", "clients"), [(48, 576), (529, 577), (10, 1153)])
def test_native_agrees_at_its_block_sizes(rows, clients):
    check(*problem(rows, clients), "native")


@pytest.mark.parametrize("backend", FUSED)
def test_paper_width_strides_and_half_storage(backend):
    check(*problem(17, 33, dim=512), backend)
    wide, index = problem(34, 66, dim=130)
    check(wide[::2, 1:65], index.T[3:67, ::2].T, backend)
    for dtype in (torch.bfloat16, torch.float16):
        check(*problem(9, 13, dtype=dtype), backend)


@pytest.mark.parametrize("backend", FUSED)
def test_zero_short_and_orthogonal_vectors(backend):
    z_p, index = problem(12, 20)
    z_p[3], index[5], index[19] = 0, 0, 0
    check(z_p, index, backend)
    leaf = z_p.clone().requires_grad_()
    projection_orthogonality(leaf, index, backend=backend).backward()
    assert not leaf.grad[3].any()
    check(1e-6 * z_p, torch.logspace(-5, 0, 20, device=DEVICE)[:, None] * index, backend)
    eye = torch.eye(64, device=DEVICE)
    check(eye[:30], eye[20:60], backend)


@pytest.mark.parametrize("backend", ["torch", *FUSED])
def test_nothing_is_zero_and_nan_is_seen(backend):
    z_p, index = problem(4, 5)
    require(_operator, backend, z_p, index)
    for z, beta in ((z_p, index[:0]), (z_p[:0], index)):
        value, (grad,) = gradients(
            lambda z, beta=beta: projection_orthogonality(z, beta, backend=backend), [z]
        )
        assert value == 0
        assert grad.shape == z.shape
        assert not grad.any()
    for bad in (float("nan"), float("inf")):
        index[2, 3] = bad
        assert projection_orthogonality(z_p, index, backend=backend).isnan()


@pytest.mark.parametrize("backend", FUSED)
def test_is_the_orthogonality_loss_when_the_index_has_as_many_rows(backend):
    z_p, index = problem(33, 33)
    require(_operator, backend, z_p, index)
    got = projection_orthogonality(z_p, index, backend=backend)
    torch.testing.assert_close(got, orthogonality_loss(z_p, index, backend=backend))


def test_reference_gradcheck():
    z_p, index = (x.double() for x in problem(4, 5, 3))
    assert torch.autograd.gradcheck(
        lambda z: projection_orthogonality_torch(z, index)[0], [z_p.requires_grad_()]
    )


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31), clients=st.integers(1, 60), scale=st.floats(0.01, 100))
def test_native_invariances(seed, clients, scale):
    """Clients in another order, rescaled, or with zero columns appended: the same loss."""
    z_p, index = problem(7, clients, 20, seed=seed)
    require(_operator, "native", z_p, index)
    base = projection_orthogonality(z_p, index, backend="native")
    order = torch.randperm(clients, generator=torch.Generator().manual_seed(seed))
    pad = torch.nn.functional.pad
    for z, beta in ((z_p, index[order]), (z_p / scale, scale * index), (pad(z_p, (0, 9)), pad(index, (0, 9)))):  # fmt: skip  # noqa: E501
        torch.testing.assert_close(projection_orthogonality(z, beta, backend="native"), base)


def test_native_bits_do_not_depend_on_threads():
    z_p, index = (x.cpu() for x in problem(130, 1300))
    require(_operator, "native", z_p, index)
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(
            gradients(lambda z: projection_orthogonality(z, index, backend="native"), [z_p])
        )
    torch.set_num_threads(before)
    for value, (grad,) in results[1:]:
        assert torch.equal(value, results[0][0])
        assert torch.equal(grad, results[0][1][0])


@pytest.mark.parametrize("backend", FUSED)
def test_second_derivative_raises_and_opcheck(backend):
    z_p, index = problem(3, 4, 8)
    require(_operator, backend, z_p, index)
    z_p.requires_grad_()
    value = projection_orthogonality(z_p, index, backend=backend)
    (grad,) = torch.autograd.grad(value, z_p, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        torch.autograd.grad(grad.sum(), z_p)
    namespace = torch.ops.c2v_sim_triton if backend == "triton" else torch.ops.c2v_sim
    torch.library.opcheck(namespace.projection_orthogonality.default, (z_p, index, True))


def test_refusals_name_what_was_wrong():
    z_p, index = problem(4, 5)
    with pytest.raises(ValueError, match=r"z_p must be \[B, D\], got \(64,\)"):
        projection_orthogonality(z_p[0], index)
    with pytest.raises(ValueError, match=r"index must be \[M, 64\], got \(5, 63\)"):
        projection_orthogonality(z_p, index[:, 1:])
    with pytest.raises(ValueError, match=r"index is a constant; pass index\.detach\(\)"):
        projection_orthogonality(z_p, index.requires_grad_())
