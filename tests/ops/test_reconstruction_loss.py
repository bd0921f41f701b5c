import pytest
import torch
from backends import DEVICE, FUSED, assert_as_good_as_torch, gradients, require

from c2v_sim.ops import reconstruction_loss
from c2v_sim.ops.reconstruction_loss import _operator, reconstruction_loss_torch


def problem(rows, dim, dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    return [torch.randn(rows, dim, generator=g).to(dtype).to(DEVICE) for _ in range(2)]


def check(inputs, backend):
    require(_operator, backend, *inputs)

    def run(tensors, backend):
        return gradients(lambda a, b: reconstruction_loss(a, b, backend=backend), tensors)

    got, grads = run(inputs, backend)
    torch32, grads32 = run(inputs, "torch")
    exact, grads64 = run([x.double() for x in inputs], "torch")
    assert got.dtype == torch.float32
    assert_as_good_as_torch(got, torch32, exact, "loss")
    size = max(1, inputs[0].numel())  # gradients of the sum, or the absolute slack hides them
    for a, b, c in zip(grads, grads32, grads64, strict=True):
        assert a.dtype == inputs[0].dtype
        assert_as_good_as_torch(size * a, size * b, size * c, "gradient")


@pytest.mark.parametrize("backend", FUSED)
@pytest.mark.parametrize(
    ("rows", "dim"), [(0, 5), (3, 0), (1, 1), (7, 31), (64, 64), (65, 63), (9, 512), (17, 241)]
)
def test_agrees_with_float64(backend, rows, dim):
    check(problem(rows, dim), backend)


@pytest.mark.parametrize("backend", FUSED)
def test_strides_and_half_storage(backend):
    a, b = problem(40, 24)
    check([a[::2, 1:20], b.T[:19, ::2].T], backend)
    for dtype in (torch.bfloat16, torch.float16):
        check(problem(9, 13, dtype), backend)


@pytest.mark.parametrize("backend", ["torch", *FUSED])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_and_inf_are_seen(backend, bad):
    inputs = problem(5, 7)
    require(_operator, backend, *inputs)
    inputs[1][2, 3] = bad
    assert not reconstruction_loss(*inputs, backend=backend).isfinite()


def test_reference_is_mse_and_gradcheck():
    a, b = (x.double().requires_grad_() for x in problem(4, 5))
    expected = torch.nn.functional.mse_loss(a, b)
    assert torch.allclose(reconstruction_loss(a, b, backend="torch"), expected)
    assert torch.autograd.gradcheck(lambda a, b: reconstruction_loss_torch(a, b)[0], [a, b])


def test_native_bits_do_not_depend_on_threads():
    inputs = [x.cpu() for x in problem(300, 512)]
    require(_operator, "native", *inputs)
    before = torch.get_num_threads()
    values = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        values.append(reconstruction_loss(*inputs, backend="native"))
    torch.set_num_threads(before)
    assert values[0] == values[1] == values[2]


@pytest.mark.parametrize("backend", FUSED)
def test_second_derivative_raises_and_opcheck(backend):
    a, b = (x.requires_grad_() for x in problem(3, 4))
    require(_operator, backend, a, b)
    (grad,) = torch.autograd.grad(reconstruction_loss(a, b, backend=backend), a, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        torch.autograd.grad(grad.sum(), a)
    namespace = torch.ops.c2v_sim_triton if backend == "triton" else torch.ops.c2v_sim
    torch.library.opcheck(namespace.reconstruction_loss.default, (a, b, True))


def test_refusals_name_what_was_wrong():
    a, b = problem(4, 5)
    with pytest.raises(ValueError, match=r"d_hat must be \[B, D\], got \(5,\)"):
        reconstruction_loss(a[0], b)
    with pytest.raises(ValueError, match=r"d must have the shape of d_hat, \(4, 5\), got \(3, 5\)"):
        reconstruction_loss(a, b[:3])
