import pytest
import torch
from backends import DEVICE, SIZES, WITH_CUDA, assert_as_good_as_torch, require

from c2v_sim.ops.weighted_sum import _add_operator, _operator, add_weighted, weighted_sum


def problem(rows, size, dtype=torch.float32, seed=0):
    g = torch.Generator().manual_seed(seed)
    arena = torch.randn(rows, size, generator=g).to(dtype).to(DEVICE)
    weights = torch.rand(rows, generator=g).to(DEVICE)
    return arena, weights


@pytest.mark.parametrize("backend", WITH_CUDA)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("rows", "size"), [(1, 1), (3, 7), (10, 1023), (4, 1024), (5, 2049), (0, 5), (3, 0)]
)
def test_agrees_with_float64(backend, dtype, rows, size):
    arena, weights = problem(rows, size, dtype)
    out = torch.empty(size, device=DEVICE)
    require(_operator, backend, arena, weights, out)
    got = weighted_sum(arena, weights, backend=backend)
    assert got.dtype == torch.float32
    exact = weights.double() @ arena.double()
    assert_as_good_as_torch(got, weighted_sum(arena, weights, backend="torch"), exact)


@pytest.mark.parametrize("backend", WITH_CUDA)
def test_strided_arena_and_out(backend):
    wide, weights = problem(6, 300)
    arena, out = wide[::2, 40:240], torch.full((200,), float("nan"), device=DEVICE)
    require(_operator, backend, arena, weights[::2], out)
    assert weighted_sum(arena, weights[::2], out, backend=backend) is out
    exact = weights[::2].double() @ arena.double()
    assert_as_good_as_torch(out, weighted_sum(arena, weights[::2], backend="torch"), exact)
    transposed = wide.T.contiguous().T
    got = weighted_sum(transposed, weights, backend=backend)
    assert torch.equal(got, weighted_sum(wide, weights, backend=backend))


@pytest.mark.parametrize("size", [*SIZES, 100_003])
def test_native_bits_do_not_depend_on_threads(size):
    arena, weights = (t.cpu() for t in problem(10, size))
    require(_operator, "native", arena, weights)
    before = torch.get_num_threads()
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(weighted_sum(arena, weights, backend="native"))
    torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("size", [*SIZES, 2047, 2049])
@pytest.mark.parametrize("rows", [1, 4, 7])
def test_native_bits_row_by_row(rows, size):
    arena, weights = (t.cpu() for t in problem(rows, size))
    require(_add_operator, "native", arena[0], 1.0, arena[0])
    out = torch.zeros(size)
    for row, weight in zip(arena, weights.tolist(), strict=True):
        add_weighted(row, weight, out, backend="native")
    assert torch.equal(out, weighted_sum(arena, weights, backend="native"))
    assert torch.allclose(out, weights @ arena, atol=1e-5)


def test_refusals_name_what_was_wrong():
    arena, weights = problem(3, 4)
    with pytest.raises(ValueError, match=r"arena must be \[K, P\], got \(3,\)"):
        weighted_sum(weights, weights)
    with pytest.raises(ValueError, match=r"weights must be \[3\], got \(2,\)"):
        weighted_sum(arena, weights[:2])
    with pytest.raises(ValueError, match=r"out must be \[4\]"):
        weighted_sum(arena, weights, torch.empty(3))
    with pytest.raises(RuntimeError, match="unknown backend 'nativ'; known: native"):
        weighted_sum(arena, weights, backend="nativ")
    with pytest.raises(RuntimeError, match=r"takes float32, bfloat16, float16, not float64"):
        weighted_sum(arena.double(), weights, backend="triton")


@pytest.mark.parametrize("backend", WITH_CUDA)
def test_opcheck(backend):
    arena, weights = problem(3, 5)
    out = torch.empty(5, device=DEVICE)
    require(_operator, backend, arena, weights, out)
    namespace = torch.ops.c2v_sim_triton if backend == "triton" else torch.ops.c2v_sim
    torch.library.opcheck(namespace.weighted_sum.default, (arena, weights, out))
