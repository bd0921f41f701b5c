import numpy as np
import pytest
import torch
from backends import DEVICE, WITH_CUDA, assert_as_good_as_torch, require
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from c2v_sim.ops.client_scores import _operator, client_scores


def problem(clients, size, dtype=torch.float32, seed=0, label_size=None):
    g = torch.Generator().manual_seed(seed)
    features = torch.randn(clients, size, generator=g).to(dtype).to(DEVICE)
    labels = torch.randn(clients, label_size or size, generator=g).to(dtype).to(DEVICE)
    sizes = torch.randint(1, 500, (clients,), generator=g).to(DEVICE)
    cohort = torch.randperm(clients, generator=g)[: max(1, clients // 3)].sort().values
    return features, labels, cohort.to(DEVICE), sizes


def require_backend(backend, dtype=torch.float32):
    require(_operator, backend, torch.zeros(1, 1, dtype=dtype, device=DEVICE))


def by_definition(features, labels, cohort, sizes):
    """A omega with the M x M matrix, a cosine at a time, in float64."""

    def cosines(index):
        x = index.double()
        length = x.norm(dim=1)
        floor = torch.outer(length, length).clamp_min(1e-300)
        return (x @ x.T) / floor

    matrix = cosines(features) if labels is None else (cosines(features) + cosines(labels)) / 2
    omega = torch.zeros(len(features), dtype=torch.float64, device=DEVICE)
    omega[cohort] = sizes[cohort].double() / sizes[cohort].sum()
    return matrix @ omega


@pytest.mark.parametrize("backend", WITH_CUDA)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("clients", "size"), [(1, 1), (2, 7), (7, 31), (9, 32), (13, 33), (200, 257), (65, 512), (3, 0)]
)
def test_agrees_with_float64(backend, dtype, clients, size):
    require_backend(backend, dtype)
    args = problem(clients, size, dtype)
    got = client_scores(*args, backend=backend)
    assert got.dtype == torch.float32
    exact = by_definition(*args)
    assert_as_good_as_torch(got, client_scores(*args, backend="torch"), exact)


@pytest.mark.parametrize("backend", [*WITH_CUDA, "torch"])
def test_single_index_and_different_widths(backend):
    require_backend(backend)
    features, labels, cohort, sizes = problem(23, 40, label_size=67)
    for label_index in (None, labels):
        got = client_scores(features, label_index, cohort, sizes, backend=backend)
        exact = by_definition(features, label_index, cohort, sizes)
        torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", [*WITH_CUDA, "torch"])
def test_strided_indices(backend):
    require_backend(backend)
    features, labels, cohort, sizes = problem(11, 48)
    wide = torch.full((22, 200), float("nan"), device=DEVICE)
    f, l = wide[::2, 10:58], wide[1::2, 100:148]  # noqa: E741
    f.copy_(features), l.copy_(labels)
    want = client_scores(features, labels, cohort, sizes, backend=backend)
    transposed = features.T.contiguous().T
    for view in (f, transposed):
        got = client_scores(view, l, cohort, sizes, backend=backend)
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("backend", [*WITH_CUDA, "torch"])
def test_zero_rows_have_cosine_zero(backend):
    require_backend(backend)
    features, labels, cohort, sizes = problem(20, 16)
    features[cohort[0]], features[1], labels[1] = 0, 0, 0
    got = client_scores(features, labels, cohort, sizes, backend=backend)
    exact = by_definition(features, labels, cohort, sizes)
    torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=1e-6)
    assert got[1] == 0


@pytest.mark.parametrize("backend", [*WITH_CUDA, "torch"])
@pytest.mark.parametrize("scale", [1e-30, 1e-42, 1e25, 1e38])
def test_length_of_a_row_does_not_matter(backend, scale):
    """Even where squares leave float32's range, in the cohort or outside it."""
    require_backend(backend)
    features, labels, cohort, sizes = problem(20, 16)
    features = features.sign() * features.abs().clamp(0.5, 3)
    outside = next(i for i in range(20) if i not in cohort)
    scaled = features.clone()
    for row in (int(cohort[0]), outside):
        scaled[row] *= scale
    exact = by_definition(scaled, labels, cohort, sizes)
    got = client_scores(scaled, labels, cohort, sizes, backend=backend)
    torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", [*WITH_CUDA, "torch"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_not_finite_rows_are_not_hidden(backend, bad):
    require_backend(backend)
    features, labels, cohort, sizes = problem(20, 16)
    outside, another = [i for i in range(20) if i not in cohort][:2]
    features[outside, 3] = bad
    got = client_scores(features, labels, cohort, sizes, backend=backend)
    assert got[outside].isnan()
    assert got.isnan().sum() == 1
    features[cohort[0], 3] = bad
    features[another] = 0
    assert client_scores(features, labels, cohort, sizes, backend=backend).isnan().all()


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 40), st.integers(1, 40), st.integers(0, 10_000))
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_properties(backend, clients, size, seed):
    """Scores permute with the clients, ignore padding, and lie within [-1, 1]."""
    require_backend(backend)
    features, labels, cohort, sizes = problem(clients, size, seed=seed)
    want = client_scores(features, labels, cohort, sizes, backend=backend)
    assert (want.abs() <= 1 + 1e-5).all()
    order = torch.randperm(clients, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    place = order.argsort()
    got = client_scores(
        features[order], labels[order], place[cohort], sizes[order], backend=backend
    )
    torch.testing.assert_close(got, want[order], rtol=1e-4, atol=1e-5)
    padded = torch.nn.functional.pad(features, (0, 5))
    got = client_scores(padded, labels, cohort, sizes, backend=backend)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_sizes_of_all_clients_or_of_the_cohort():
    features, labels, cohort, sizes = problem(30, 8)
    want = client_scores(features, labels, cohort, sizes)
    assert torch.equal(client_scores(features, labels, cohort, sizes[cohort]), want)
    ids = np.asarray(cohort.cpu())
    assert torch.equal(client_scores(features, labels, ids, sizes.cpu().numpy()), want)
    assert torch.equal(client_scores(features, labels, ids.tolist(), sizes.tolist()), want)


class Moved(TorchDispatchMode):
    """The sizes of what is copied to the device meta."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        given = args[0] if args else None
        if all(isinstance(t, torch.Tensor) for t in (given, out)) and given.is_cpu and out.is_meta:
            self.sizes.append(out.numel())
        return out


def test_only_what_belongs_to_the_cohort_goes_to_the_device():
    sizes = np.arange(1, 1001)
    index = torch.empty(1000, 8, device="meta")
    with Moved() as moved:
        scores = client_scores(index, None, np.array([3, 5, 9]), sizes, backend="torch")
    assert scores.shape == (1000,)
    assert moved.sizes == [3, 3]


@pytest.mark.parametrize("clients", [10, 1003])
def test_native_bits_do_not_depend_on_threads(clients):
    require_backend("native")
    args = problem(clients, 129)
    results, before = [], torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(client_scores(*args, backend="native"))
    torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_refusals_name_what_was_wrong():
    features, labels, cohort, sizes = problem(9, 4)
    with pytest.raises(ValueError, match=r"feature_index must be \[M, D\], got \(4,\)"):
        client_scores(features[0], labels, cohort, sizes)
    with pytest.raises(ValueError, match=r"label_index must have 9 rows of torch.float32"):
        client_scores(features, labels[:3], cohort, sizes)
    with pytest.raises(ValueError, match=r"cohort must be \[k\] client ids with k >= 1"):
        client_scores(features, labels, cohort[:0], sizes)
    with pytest.raises(ValueError, match=r"must name clients 0..8, got \[2, 9\]"):
        client_scores(features, labels, [2, 9], sizes)
    with pytest.raises(ValueError, match=r"sizes must be \[9\] or \[3\], got \(5,\)"):
        client_scores(features, labels, cohort, sizes[:5])
    with pytest.raises(ValueError, match="sizes must be counts >= 0"):
        client_scores(features, labels, [0, 1], [0, 0])


@pytest.mark.parametrize("backend", WITH_CUDA)
def test_opcheck(backend):
    require_backend(backend)
    features, labels, cohort, _ = problem(9, 5)
    omega = torch.full((len(cohort),), 1 / len(cohort), device=DEVICE)
    namespace = torch.ops.c2v_sim_triton if backend == "triton" else torch.ops.c2v_sim
    for label_index in (labels, None):
        args = (features, label_index, cohort, omega)
        torch.library.opcheck(namespace.client_scores.default, args)
