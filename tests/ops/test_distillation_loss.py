import pytest
import torch
from backends import DEVICE, FUSED, assert_as_good_as_torch, gradients, require
from hypothesis import given, settings
from hypothesis import strategies as st

from c2v_sim.ops import distillation_loss
from c2v_sim.ops.distillation_loss import _operator, distillation_loss_torch


def problem(rows, classes, dtype=torch.float32, seed=0, scale=2.0):
    g = torch.Generator().manual_seed(seed)
    make = lambda: (scale * torch.randn(rows, classes, generator=g)).to(dtype).to(DEVICE)  # noqa: E731
    return make(), make()


def check(inputs, backend):
    require(_operator, backend, *inputs)

    def run(tensors, backend):
        return gradients(lambda a, b: distillation_loss(a, b, backend=backend), tensors)

    got, grads = run(inputs, backend)
    torch32, grads32 = run(inputs, "torch")
    exact, grads64 = run([x.double() for x in inputs], "torch")
    assert got.dtype == torch.float32
    assert_as_good_as_torch(got, torch32, exact, "loss")
    rows = max(1, len(inputs[0]))  # gradients of the sum, or the absolute slack hides them
    for name, a, b, c in zip(("logits", "logits_p"), grads, grads32, grads64, strict=True):
        assert a.dtype == inputs[0].dtype
        assert_as_good_as_torch(rows * a, rows * b, rows * c, name)


# The interpreter runs a program a row: fewer rows for Triton.
CASES = [
    *(("native", rows, k) for rows in (0, 1, 7, 129) for k in (1, 2, 10, 31, 32, 33, 345)),
    *(("triton", rows, k) for rows in (0, 1, 7) for k in (1, 10, 31, 32, 33, 345)),
    ("triton", 129, 10),
]


@pytest.mark.parametrize(("backend", "rows", "classes"), CASES)
def test_agrees_with_float64(backend, rows, classes):
    check(problem(rows, classes), backend)


@pytest.mark.parametrize("backend", FUSED)
@pytest.mark.parametrize("scale", [1e-4, 30.0, 1000.0])
def test_flat_and_extreme_logits(backend, scale):
    check(problem(13, 20, scale=scale), backend)


@pytest.mark.parametrize("backend", FUSED)
def test_strides_and_half_storage(backend):
    a, b = problem(40, 24)
    check((a[::2, 1:20], b.T[:19, ::2].T), backend)
    for dtype in (torch.bfloat16, torch.float16):
        check(problem(9, 13, dtype), backend)


@pytest.mark.parametrize("backend", FUSED)
def test_equal_logits_have_no_loss_and_no_gradient(backend):
    a, _ = problem(5, 9)
    require(_operator, backend, a, a)
    value, grads = gradients(lambda a, b: distillation_loss(a, b, backend=backend), [a, a + 3])
    assert value.abs() < 1e-6
    assert all(g.abs().max() < 1e-6 for g in grads)


@pytest.mark.parametrize("backend", ["torch", *FUSED])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("which", [0, 1])
def test_nan_and_inf_are_seen(backend, bad, which):
    inputs = problem(5, 7)
    require(_operator, backend, *inputs)
    inputs[which][2, 3] = bad
    assert not distillation_loss(*inputs, backend=backend).isfinite()


def test_reference_is_torch_kl_and_gradcheck():
    a, b = (x.double().requires_grad_() for x in problem(4, 5))
    log_p, log_q = a.log_softmax(1), b.log_softmax(1)
    expected = torch.nn.functional.kl_div(log_q, log_p, log_target=True, reduction="batchmean")
    assert torch.allclose(distillation_loss(a, b, backend="torch"), expected)
    assert torch.autograd.gradcheck(lambda a, b: distillation_loss_torch(a, b)[0], [a, b])


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**31), classes=st.integers(1, 50), shift=st.floats(-50, 50))
def test_native_invariances(seed, classes, shift):
    """Not negative; a constant added to the logits or classes in another order change nothing."""
    a, b = problem(6, classes, seed=seed)
    require(_operator, "native", a, b)
    base = distillation_loss(a, b, backend="native")
    assert base >= -1e-6
    order = torch.randperm(classes, generator=torch.Generator().manual_seed(seed))
    for x, y in ((a + shift, b - shift), (a[:, order], b[:, order])):
        other = distillation_loss(x, y, backend="native")
        torch.testing.assert_close(other, base, rtol=1e-4, atol=1e-5)


def test_native_bits_do_not_depend_on_threads():
    inputs = [x.cpu() for x in problem(300, 500)]
    require(_operator, "native", *inputs)
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(gradients(lambda a, b: distillation_loss(a, b, backend="native"), inputs))
    torch.set_num_threads(before)
    for value, grads in results[1:]:
        assert torch.equal(value, results[0][0])
        assert all(torch.equal(x, y) for x, y in zip(grads, results[0][1], strict=True))


@pytest.mark.parametrize("backend", FUSED)
def test_second_derivative_raises_and_opcheck(backend):
    a, b = (x.requires_grad_() for x in problem(3, 4))
    require(_operator, backend, a, b)
    (grad,) = torch.autograd.grad(distillation_loss(a, b, backend=backend), a, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        torch.autograd.grad(grad.sum(), b)
    namespace = torch.ops.c2v_sim_triton if backend == "triton" else torch.ops.c2v_sim
    torch.library.opcheck(namespace.distillation_loss.default, (a, b, True))


def test_refusals_name_what_was_wrong():
    a, b = problem(4, 5)
    with pytest.raises(ValueError, match=r"logits must be \[B, K\] with K > 0, got \(4, 0\)"):
        distillation_loss(a[:, :0], b[:, :0])
    with pytest.raises(ValueError, match=r"logits_p must have the shape of logits, \(4, 5\)"):
        distillation_loss(a, b[:, :4])
