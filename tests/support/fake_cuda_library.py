"""Builds and loads fake_cuda.cpp; imports nothing of torch, since it has to come before it."""

import ctypes
import importlib.util
import shutil
import subprocess
from pathlib import Path


def torch_folder() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def build(folder: Path) -> Path:
    """The shared library, in `folder`; a few seconds."""
    compiler, torch, library = shutil.which("g++"), torch_folder(), folder / "fake_cuda.so"
    if compiler is None:
        raise FileNotFoundError("g++ is not installed")
    include = [f"-I{torch / 'include'}", f"-I{torch / 'include/torch/csrc/api/include'}"]
    source = Path(__file__).with_name("fake_cuda.cpp")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-std=c++20", *include, str(source), "-o", str(library),
         f"-L{torch / 'lib'}", "-lc10", "-ltorch_cpu"],
        check=True, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    return library


def load(library: str) -> None:
    """From now on `import torch` sees one CUDA device, on which only fake tensors can be."""
    parts = torch_folder() / "lib"
    for name in ("libtorch_global_deps.so", "libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(parts / name), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
