import time
from threading import Thread

import pytest
import torch
from backends import DEVICE, WITH_CUDA, assert_as_good_as_torch, require

from c2v_sim.ops.sgd_step import _operator, _options, sgd_options, sgd_step_

# name: options of sgd_step_; "linear"/"anchor"/"buffer" True asks problem() for the tensor.
CASES = {
    "plain": {"lr": 0.1},
    "decay": {"lr": 0.1, "weight_decay": 0.05},
    "momentum": {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-5, "buffer": True},
    "feddyn": {"lr": 0.1, "weight_decay": 0.1, "max_grad_norm": 1.0, "linear": True},
    "fedprox": {"lr": 0.1, "proximal": 0.3, "anchor": True, "zero_grads": True},
    "all": {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.1, "max_grad_norm": 2.0, "proximal": 0.1,
            "linear": True, "anchor": True, "buffer": True, "zero_grads": True},
}  # fmt: skip


def problem(rows, size, case, dtype=torch.float32, seed=0):
    """params, grads and the keyword arguments of one case; the same numbers in every dtype."""
    gen = torch.Generator().manual_seed(seed)

    def randn():
        return torch.randn(rows, size, generator=gen).to(dtype).to(DEVICE)

    tensors = {n: randn() for n in ("params", "grads", "buffer", "linear", "anchor")}
    options = dict(CASES[case])
    kwargs = {n: tensors[n] for n in ("linear", "anchor") if options.pop(n, False)}
    if options.pop("buffer", False):
        kwargs["momentum_buffer"] = tensors["buffer"]
    return tensors["params"], tensors["grads"], kwargs | options


def run(params, grads, kwargs, backend, steps=2):
    """State after some steps on copies: params, grads, buffer (or None)."""
    params, grads, kwargs = params.clone(), grads.clone(), dict(kwargs)
    if "momentum_buffer" in kwargs:
        kwargs["momentum_buffer"] = kwargs["momentum_buffer"].clone()
    for _ in range(steps):
        sgd_step_(params, grads, backend=backend, **kwargs)
    return params, grads, kwargs.get("momentum_buffer")


def require_backend(backend):
    t = torch.zeros(1, 1, device=DEVICE)
    require(_operator, backend, t)


@pytest.mark.parametrize("backend", WITH_CUDA)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("rows", "size"), [(1, 1), (3, 7), (2, 1023), (2, 1025), (1, 4096), (2, 4097), (0, 5), (3, 0)]
)
def test_agrees_with_float64(backend, case, rows, size):
    require_backend(backend)
    got = run(*problem(rows, size, case), backend)
    torch32 = run(*problem(rows, size, case), "torch")
    exact = run(*problem(rows, size, case, torch.float64), "torch")
    for name, a, b, c in zip(("params", "grads", "buffer"), got, torch32, exact, strict=True):
        if c is not None:
            assert_as_good_as_torch(a, b, c, name)


@pytest.mark.parametrize("backend", [*WITH_CUDA, "torch"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("max_grad_norm", [None, 3.0])
def test_is_torch_optim_sgd(backend, momentum, max_grad_norm):
    """Five steps of torch.optim.SGD after clip_grad_norm_, first step included."""
    require_backend(backend)
    gen = torch.Generator().manual_seed(1)
    theirs = torch.nn.Parameter(torch.randn(5003, generator=gen).to(DEVICE))
    ours, buffer = theirs.detach().clone(), torch.zeros_like(theirs) if momentum else None
    optimiser = torch.optim.SGD([theirs], lr=0.1, momentum=momentum, weight_decay=0.01)
    for _ in range(5):
        grad = torch.randn(5003, generator=gen).to(DEVICE)
        theirs.grad = grad.clone()
        if max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_([theirs], max_grad_norm)
        optimiser.step()
        sgd_step_(
            ours, grad, buffer, lr=0.1, momentum=momentum, weight_decay=0.01,
            max_grad_norm=max_grad_norm, backend=backend,
        )  # fmt: skip
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-6, atol=1e-6)
    if backend == "native" and max_grad_norm is None:
        assert torch.equal(ours, theirs.detach()), "the bits of torch.optim.SGD"


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_is_the_gradient_of_the_feddyn_objective(backend):
    """Autograd of CE-like loss + a <theta, h - w>, clipped, then SGD with decay 5e-5 + a."""
    require_backend(backend)
    gen = torch.Generator().manual_seed(2)
    w, h, x = (torch.randn(257, generator=gen).to(DEVICE) for _ in range(3))
    a = 0.1 * 7 / 5
    theirs = torch.nn.Parameter(w.clone())
    optimiser = torch.optim.SGD([theirs], lr=0.05, weight_decay=5e-5 + a)
    ours = w.clone()
    for _ in range(4):
        optimiser.zero_grad()
        (100 * (theirs * x).tanh().sum() + a * theirs @ (h - w)).backward()
        torch.nn.utils.clip_grad_norm_([theirs], 10.0)
        optimiser.step()
        leaf = ours.clone().requires_grad_()
        (100 * (leaf * x).tanh().sum()).backward()
        sgd_step_(
            ours, leaf.grad, lr=0.05, weight_decay=5e-5 + a, linear=a * (h - w),
            max_grad_norm=10.0, backend=backend,
        )  # fmt: skip
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", [*WITH_CUDA, "torch"])
def test_rows_are_independent_and_options_per_row(backend):
    require_backend(backend)
    params, grads, kwargs = problem(3, 65, "all")
    per_row = {"lr": [0.1, 0.2, 0.3], "weight_decay": [0.0, 0.1, 0.2], "momentum": [0.0, 0.5, 0.9],
               "proximal": [0.0, 0.1, 1.0], "max_grad_norm": [1.0, float("inf"), 0.1]}  # fmt: skip
    kwargs |= {n: torch.tensor(v, device=DEVICE) for n, v in per_row.items()}
    together = run(params, grads, kwargs, backend)
    for k in range(3):
        one = {n: v[k : k + 1] if isinstance(v, torch.Tensor) else v for n, v in kwargs.items()}
        alone = run(params[k : k + 1], grads[k : k + 1], one, backend)
        for a, b in zip(together, alone, strict=True):
            assert torch.equal(a[k : k + 1], b)
        flat = {n: v[0] if n in ("linear", "anchor", "momentum_buffer") else v
                for n, v in one.items()}  # fmt: skip
        for a, b in zip(together, run(params[k], grads[k], flat, backend), strict=True):
            assert torch.equal(a[k], b)


@pytest.mark.parametrize("backend", [*WITH_CUDA, "torch"])
def test_strided_rows_leave_the_rest_of_the_arena_alone(backend):
    require_backend(backend)
    params, grads, kwargs = problem(3, 70, "all")
    want = run(params, grads, kwargs, backend, steps=1)
    wide = torch.full((3, 300), float("nan"), device=DEVICE)
    p, g, b = wide[:, 10:80], wide[:, 100:170], wide[:, 200:270]
    p.copy_(params), g.copy_(grads), b.copy_(kwargs["momentum_buffer"])
    sgd_step_(p, g, **(kwargs | {"momentum_buffer": b}), backend=backend)
    for got, expected in zip((p, g, b), want, strict=True):
        assert torch.equal(got, expected)
    assert wide.isnan().sum() == 3 * (300 - 210)
    shared = run(params, grads, kwargs | {"anchor": params[0], "linear": grads[1]}, backend)
    rows = {"anchor": params[0].repeat(3, 1), "linear": grads[1].repeat(3, 1)}
    assert torch.equal(shared[0], run(params, grads, kwargs | rows, backend)[0])


@pytest.mark.parametrize("case", ["momentum", "all"])
@pytest.mark.parametrize(("rows", "size"), [(1, 100_003), (10, 4097)])
def test_native_bits_do_not_depend_on_threads(case, rows, size):
    require_backend("native")
    params, grads, kwargs = problem(rows, size, case)
    results, before = [], torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(run(params, grads, kwargs, "native"))
    torch.set_num_threads(before)
    lane = Thread(target=lambda: results.append(run(params, grads, kwargs, "native")))
    lane.start()
    lane.join()
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("backend", [*WITH_CUDA, "torch"])
def test_not_finite_gradients_are_not_hidden(backend):
    require_backend(backend)
    for bad in (float("nan"), float("inf")):
        params, grads, kwargs = problem(2, 9, "all")
        grads[1, 4] = bad
        got, _, _ = run(params, grads, kwargs, backend, steps=1)
        assert got[0].isfinite().all()
        assert got[1].isnan().any()  # clipping scales Inf by 0
        if bad != bad:
            assert got[1].isnan().all()


@pytest.mark.parametrize("backend", WITH_CUDA)
def test_huge_gradients_are_clipped_not_overflowed(backend):
    """Squares beyond float32: fused backends sum the norm in float64."""
    require_backend(backend)
    params, grads = torch.zeros(1, 100, device=DEVICE), torch.full((1, 100), 1e30, device=DEVICE)
    sgd_step_(params, grads, lr=1.0, max_grad_norm=10.0, backend=backend)
    torch.testing.assert_close(params, torch.full_like(params, -1.0))


def test_refusals_name_what_was_wrong_and_change_nothing():
    params, grads, _ = problem(3, 4, "plain")
    before = params.clone()
    with pytest.raises(ValueError, match=r"params must be \[K, P\] or \[P\], got \(1, 3, 4\)"):
        sgd_step_(params[None], grads[None], lr=0.1)
    with pytest.raises(ValueError, match=r"grads must be \(3, 4\), got \(2, 4\)"):
        sgd_step_(params, grads[:2], lr=0.1)
    with pytest.raises(ValueError, match="momentum needs momentum_buffer"):
        sgd_step_(params, grads, lr=0.1, momentum=0.9)
    with pytest.raises(ValueError, match="proximal needs anchor"):
        sgd_step_(params, grads, lr=0.1, proximal=0.9)
    with pytest.raises(ValueError, match=r"linear must be \(3, 4\), got \(3,\)"):
        sgd_step_(params, grads, lr=0.1, linear=params[:, 0])
    with pytest.raises(ValueError, match=r"elements of a row of grads must be adjacent"):
        sgd_step_(params, torch.zeros(4, 3, device=DEVICE).T, lr=0.1)
    with pytest.raises(ValueError, match=r"grads must be torch.float32 on .* got torch.float64"):
        sgd_step_(params, grads.double(), lr=0.1)
    with pytest.raises(ValueError, match=r"an option must be a number or \[3\], got \(2,\)"):
        sgd_step_(params, grads, lr=torch.ones(2))
    with pytest.raises(RuntimeError, match=r"takes float32, not float64"):
        sgd_step_(params.double(), grads.double(), lr=0.1, backend="native")
    assert torch.equal(params, before)


@pytest.mark.parametrize("backend", WITH_CUDA)
def test_options_that_were_made_before_give_the_same_bits(backend):
    require(_operator, backend, torch.zeros(1, 1, device=DEVICE))
    g = torch.Generator().manual_seed(0)
    p, grads, buffer = (torch.randn(3, 65, generator=g).to(DEVICE) for _ in range(3))
    numbers = {"lr": 0.1, "momentum": 0.9, "max_grad_norm": 2.0}
    numbers["weight_decay"] = torch.tensor([0.1, 0.0, 0.3], device=DEVICE)
    made = sgd_options(p, **numbers)
    ends = []
    for options in (None, made):
        row, velocity = p.clone(), buffer.clone()
        sgd_step_(row, grads, velocity, **numbers, options=options, backend=backend)
        ends.append((row, velocity))
    assert all(map(torch.equal, *ends))
    with pytest.raises(ValueError, match=r"options must be \[3, 5\], got \(1, 5\)"):
        sgd_step_(p, grads, buffer, **numbers, options=made[:1])


@pytest.mark.parametrize("backend", WITH_CUDA)
def test_opcheck(backend):
    require_backend(backend)
    p, g, b, a = (torch.randn(2, 5, device=DEVICE) for _ in range(4))
    options = torch.full((2, 5), 0.1, device=DEVICE)
    namespace = torch.ops.c2v_sim_triton if backend == "triton" else torch.ops.c2v_sim
    torch.library.opcheck(namespace.sgd_step.default, (p, g, b, options, a, a, True, True))
    torch.library.opcheck(
        namespace.sgd_step.default, (p, g, None, options, None, None, False, False)
    )


def test_threads_that_ask_first_together_get_one_tensor_of_constants(monkeypatch):
    """A recorded step knows its address: the tensor of the one that came second would be freed."""
    make, found = torch.tensor, []

    def slow(*args, **kwargs):
        made = make(*args, **kwargs)
        time.sleep(0.05)  # while the other thread asks
        return made

    monkeypatch.setattr(torch, "tensor", slow)
    params, values = torch.zeros(1, 4), (0.123, 0.0, 0.9, 0.0, float("inf"))
    threads = [Thread(target=lambda: found.append(_options(params, values))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {t.data_ptr() for t in found} == {_options(params, values).data_ptr()}
