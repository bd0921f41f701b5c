"""The CUDA sources without a GPU: nvcc compiles them, and g++ builds them for the CPU through
cuda_shim.h, where they run and are compared with the references. It cannot find races between
threads or memory that only a GPU reorders.
"""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from c2v_sim.ops.client_scores import client_scores_torch
from c2v_sim.ops.sgd_step import sgd_step_torch

ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "tests" / "support"
KERNELS = sorted((ROOT / "csrc/cuda").glob("*.cu"))
STORAGE = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def compiler(name: str) -> str:
    return shutil.which(name) or pytest.skip(f"{name} is not on PATH")


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("source", KERNELS, ids=lambda p: p.stem)
def test_compiles_for_the_gpus_we_name_without_spills(source, tmp_path, record_property):
    nvcc = compiler("nvcc")
    targets = [f"-gencode=arch=compute_{n},code=sm_{n}" for n in (80, 86, 90)]
    flags = ["-std=c++20", "-O3", "-Xptxas", "-v", "-Werror", "all-warnings"]
    log = run(nvcc, *flags, *targets, "-c", str(source), "-o", str(tmp_path / "out.o"))
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill", log)]
    assert spills, "ptxas printed no statistics"
    assert max(spills) == 0
    record_property("registers", max(int(n) for n in re.findall(r"Used (\d+) registers", log)))


def test_bindings_compile_against_the_stable_interface():
    include = Path(torch.__file__).parent / "include"
    run(
        compiler("g++"), "-std=c++20", "-fsyntax-only", "-Wall", "-Wno-psabi", "-Werror",
        "-DUSE_CUDA", "-DTORCH_TARGET_VERSION=0x020a000000000000", f"-isystem{include}",
        str(ROOT / "csrc/cuda/bindings.cpp"),
    )  # fmt: skip


@pytest.mark.parametrize("source", KERNELS, ids=lambda p: p.stem)
def test_the_operator_is_tested_through_backend_cuda(source):
    """On a GPU; here its cases are skipped."""
    assert "WITH_CUDA" in (ROOT / f"tests/ops/test_{source.stem}.py").read_text()


class Matrix(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("size", ctypes.c_int64),
    )


def matrix(t: torch.Tensor | None) -> Matrix:
    return Matrix(None, 0, 0) if t is None else Matrix(t.data_ptr(), t.stride(0), t.shape[1])


def pointer(t: torch.Tensor) -> ctypes.c_void_p:
    assert t.is_contiguous()
    return ctypes.c_void_p(t.data_ptr())


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    out = tmp_path_factory.mktemp("cuda_on_cpu") / "kernels.so"
    run(
        compiler("g++"), "-std=c++20", "-O1", "-shared", "-fPIC", "-Wno-unknown-pragmas",
        f"-I{SUPPORT}", f"-I{ROOT / 'csrc/cuda'}", "-o", str(out),
        "-x", "c++", str(SUPPORT / "cuda_on_cpu.cpp"), *map(str, KERNELS),
    )  # fmt: skip
    loaded = ctypes.CDLL(str(out))
    for name in ("weighted_sum", "sgd_step", "client_scores"):
        getattr(loaded, name).restype = ctypes.c_char_p
    return loaded


@pytest.fixture(params=[False, True], ids=["ascending", "descending"])
def cuda(request, library):
    """The library, resuming the threads of a block in one order and in the other."""
    library.run_threads_descending(ctypes.c_bool(request.param))
    yield library
    library.run_threads_descending(ctypes.c_bool(False))


def rows_in_nan(rows, size, seed, dtype=torch.float32, offset=4, wide=None):
    """A [rows, size] view into NaN, so that reads and writes outside of it are seen."""
    wide = wide or size + 2 * offset
    g = torch.Generator().manual_seed(seed)
    arena = torch.full((rows, wide), float("nan"), dtype=dtype)
    view = arena[:, offset : offset + size]
    view.copy_(torch.randn(rows, size, generator=g))
    return view


def border_is_nan(view) -> bool:
    return int(view._base.isnan().sum()) == view._base.numel() - view.numel()


# Aligned rows take packs of four, the others single elements.
LAYOUTS = [(1, 1, 3), (3, 1024, 4), (2, 1028, 4), (3, 257, 4), (2, 64, 1), (4, 1024, 3)]


@pytest.mark.parametrize("dtype", STORAGE)
@pytest.mark.parametrize(("rows", "size", "offset"), LAYOUTS)
def test_weighted_sum(cuda, dtype, rows, size, offset):
    arena = rows_in_nan(rows, size, 0, dtype, offset)
    weights = torch.rand(rows, generator=torch.Generator().manual_seed(1))
    out = torch.full((1, size + 8), float("nan"))
    place = ctypes.c_void_p(out.data_ptr() + 16)
    assert cuda.weighted_sum(
        STORAGE[dtype], matrix(arena), ctypes.c_int64(rows), pointer(weights), place
    ) is None  # fmt: skip
    exact = weights.double() @ arena.double()
    torch.testing.assert_close(out[0, 4:-4].double(), exact, rtol=1e-5, atol=1e-6)
    assert out[0, :4].isnan().all()
    assert out[0, -4:].isnan().all()


@pytest.mark.parametrize(
    "parts",
    ["", "buffer", "linear clip", "anchor zero", "buffer linear anchor clip zero"],
)
@pytest.mark.parametrize(("rows", "size", "offset"), [*LAYOUTS, (2, 4096 + 8, 4), (1, 9001, 1)])
def test_sgd_step(cuda, parts, rows, size, offset):
    names = ("params", "grads", "buffer", "linear", "anchor")
    tensors = {n: rows_in_nan(rows, size, i, offset=offset) for i, n in enumerate(names)}
    options = torch.rand(rows, 5, generator=torch.Generator().manual_seed(9)) + 0.1
    optional = {n: tensors[n] if n in parts else None for n in ("buffer", "linear", "anchor")}
    args = [tensors["params"], tensors["grads"], optional["buffer"], options, optional["linear"],
            optional["anchor"]]  # fmt: skip
    flags = ("clip" in parts, "zero" in parts)
    want = [None if t is None else t.double() for t in args]
    sgd_step_torch(*want, *flags)
    assert cuda.sgd_step(
        *map(matrix, args), ctypes.c_int64(rows), *map(ctypes.c_bool, flags)
    ) is None  # fmt: skip
    for got, exact in zip(args[:3], want[:3], strict=True):
        if got is not None:
            torch.testing.assert_close(got.double(), exact, rtol=1e-5, atol=1e-5)
            assert border_is_nan(got)


@pytest.mark.parametrize("dtype", STORAGE)
@pytest.mark.parametrize(
    ("clients", "size", "label_size", "offset"),
    [(1, 1, 1, 1), (9, 128, 256, 4), (70, 132, 132, 4), (17, 31, 64, 3)],
)
def test_client_scores(cuda, dtype, clients, size, label_size, offset):
    features = rows_in_nan(clients, size, 0, dtype, offset)
    labels = rows_in_nan(clients, label_size, 1, dtype, offset)
    if clients > 8:  # a zero row, a tiny and a huge one, in the cohort and outside it
        features[0], features[1] = 0, 0
        if dtype != torch.float16:
            features[2:4] *= 1e-25
            features[4:6] *= 1e25
    cohort = torch.arange(0, clients, 2 if clients < 70 else 1)
    omega = torch.rand(len(cohort), generator=torch.Generator().manual_seed(2)).softmax(0)
    for l in (labels, None):  # noqa: E741
        scores = torch.full((clients + 1,), float("nan"))
        assert cuda.client_scores(
            STORAGE[dtype], matrix(features), matrix(l), ctypes.c_int64(clients), pointer(cohort),
            pointer(omega), ctypes.c_int64(len(cohort)), pointer(scores),
        ) is None  # fmt: skip
        exact = client_scores_torch(
            features.double(), None if l is None else l.double(), cohort, omega.double()
        )
        torch.testing.assert_close(scores[:-1].double(), exact, rtol=1e-4, atol=1e-6)
        assert scores[-1].isnan()


def test_descending_order_would_show_a_missing_barrier(tmp_path):
    """The check itself: without the barriers of a tree sum the two orders disagree."""
    source = tmp_path / "broken.cpp"
    source.write_text(
        '#include "cuda_shim.h"\n'
        "__global__ void sum(float* out) {\n"
        "  __shared__ float s[64];\n"
        "  s[threadIdx.x] = threadIdx.x;\n"
        "  BARRIER();\n"
        "  if (threadIdx.x == 0) { *out = 0; for (float x : s) *out += x; }\n"
        "}\n"
        'extern "C" float run(bool descending) {\n'
        "  float out; float* p = &out; cuda_shim::descending = descending;\n"
        "  C2V_LAUNCH(sum, 1, 64, nullptr, p);\n"
        "  return out;\n"
        "}\n"
    )
    results = {}
    for barrier in ("", "__syncthreads"):
        out = tmp_path / f"with{barrier}.so"
        run(
            compiler("g++"), "-std=c++20", "-O1", "-shared", "-fPIC", f"-DBARRIER()={barrier}()" if
            barrier else "-DBARRIER()=", f"-I{SUPPORT}", str(source), "-o", str(out),
        )  # fmt: skip
        broken = ctypes.CDLL(str(out))
        broken.run.restype = ctypes.c_float
        results[barrier] = [broken.run(ctypes.c_bool(d)) for d in (False, True)]
    assert results["__syncthreads"] == [2016.0, 2016.0]
    assert results[""][0] != 2016.0
