"""Builds c2v_sim._C, the native operators, when a compiler and torch are there.

The package works without it (every operator has a torch reference), so a missing compiler or a
failed build is reported loudly and does not stop the installation.
"""

import os
import platform
import sys
from pathlib import Path

from setuptools import find_packages, setup

CPU_SOURCES = ["csrc/ops.cpp", *sorted(str(p) for p in Path("csrc/cpu").rglob("*.cpp"))]
CUDA_SOURCES = ["csrc/cuda/bindings.cpp", *sorted(str(p) for p in Path("csrc/cuda").glob("*.cu"))]
HEADERS = sorted(str(p) for p in Path("csrc").rglob("*.h"))
# The oldest torch whose stable C++ interface the sources use (2.10: parallel_for).
STABLE_ABI = "-DTORCH_TARGET_VERSION=0x020a000000000000"


def say(text: str) -> None:
    print(f"\n*** c2v_sim: {text}\n", file=sys.stderr, flush=True)


def extension_arguments() -> dict:
    """Keyword arguments for setup(): the extension, or nothing with the reason said."""
    if os.environ.get("C2V_SIM_NO_NATIVE"):
        say("C2V_SIM_NO_NATIVE is set: native operators are not built, torch references run.")
        return {}
    try:
        import torch
        from torch.utils import cpp_extension
    except ImportError:
        say(
            "torch is not importable in the build environment, so the native operators are NOT "
            "built. Install torch first, then `pip install --no-build-isolation .`"
        )
        return {}

    with_cuda = bool(torch.version.cuda and cpp_extension.CUDA_HOME)
    # AVX2 is checked when the library is loaded; other machines take the torch reference.
    simd = ["-mavx2", "-mfma", "-mf16c"] if platform.machine() in ("x86_64", "AMD64") else []
    cxx = ["-O3", "-std=c++20", "-fopenmp-simd", STABLE_ABI, "-DPy_LIMITED_API=0x030b0000", *simd]
    extension = (cpp_extension.CUDAExtension if with_cuda else cpp_extension.CppExtension)(
        name="c2v_sim._C",
        sources=CPU_SOURCES + (CUDA_SOURCES if with_cuda else []),
        include_dirs=[str(Path("csrc").resolve())],
        depends=HEADERS + CUDA_SOURCES,
        extra_compile_args={"cxx": cxx, "nvcc": ["-O3", "-std=c++20", STABLE_ABI, "-DUSE_CUDA"]},
        define_macros=[("USE_CUDA", None)] if with_cuda else [],
        py_limited_api=True,
    )

    class OptionalBuild(cpp_extension.BuildExtension):
        """Turns a failed compilation into a loud message instead of a failed installation."""

        def build_extensions(self) -> None:
            try:
                super().build_extensions()
            except Exception as error:
                if os.environ.get("C2V_SIM_REQUIRE_NATIVE"):
                    raise
                say(
                    f"the native operators could not be built ({type(error).__name__}: {error}). "
                    "The package is installed and runs on the torch references. Install g++ and "
                    "run `make setup` again for the fast path."
                )
                for stale in Path("c2v_sim").glob("_C*.so"):  # of other sources than these
                    stale.unlink()
                self.extensions = []

        def copy_extensions_to_source(self) -> None:
            if self.extensions:
                super().copy_extensions_to_source()

    return {
        "ext_modules": [extension],
        "cmdclass": {"build_ext": OptionalBuild},
        "options": {"bdist_wheel": {"py_limited_api": "cp311"}},
    }


# kernels/ is mapped into the package by pyproject.toml, where no search finds it.
setup(packages=[*find_packages(include=["c2v_sim*"]), "c2v_sim.kernels"], **extension_arguments())
