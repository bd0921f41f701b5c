"""Builds c2v_sim._C, the native operators, when a compiler and torch are there.

The package works without it (every operator has a torch reference), so a missing compiler or a
failed build is reported loudly and does not stop the installation. Where the CUDA sources cannot
be built, those for the CPU are.
"""

import os
import platform
import re
import site
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import find_packages, setup

CPU_SOURCES = ["csrc/ops.cpp", *sorted(str(p) for p in Path("csrc/cpu").rglob("*.cpp"))]
CUDA_SOURCES = ["csrc/cuda/bindings.cpp", *sorted(str(p) for p in Path("csrc/cuda").glob("*.cu"))]
HEADERS = sorted(str(p) for p in Path("csrc").rglob("*.h"))
# The oldest torch whose stable C++ interface the sources use (2.10: parallel_for).
STABLE_ABI = "-DTORCH_TARGET_VERSION=0x020a000000000000"
# What is built for where no GPU can be asked; later ones take the last as PTX.
GPUS = "8.0;8.6;9.0+PTX"
HOW_TO_REBUILD = (
    "With g++ and torch 2.10 or newer installed, `make setup` in a checkout or "
    "`pip install --no-cache-dir --no-deps --force-reinstall c2v_sim` builds them."
)


def say(text: str) -> None:
    print(f"\n*** c2v_sim: {text}\n", file=sys.stderr, flush=True)


def torch_is_found() -> bool:
    """Whether torch can be imported, here or from where the package is installed into.

    pip hides the user's packages from a build, but starts it with the user's interpreter, which
    knows where they are. The stable interface makes the result fit any later torch as well.
    """
    for folder in (None, sysconfig.get_path("platlib")):
        if folder:
            site.addsitedir(folder)
        try:
            import torch  # noqa: F401
        except ImportError:
            continue
        return True
    return False


def why_no_cuda(built_for: str | None, cuda_home: str | None) -> str | None:
    """The reason, as a sentence, not to build the CUDA sources; None when they can be built."""
    if not built_for:
        return "this torch is a build without CUDA"
    if not cuda_home:
        return f"torch is built for CUDA {built_for}, but no nvcc was found (CUDA_HOME, PATH)"
    command = [str(Path(cuda_home, "bin", "nvcc")), "--version"]
    try:
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        return f"nvcc does not start ({error})"
    found = re.search(r"release (\d+)\.(\d+)", text)
    if found is None or found[1] != built_for.split(".")[0]:
        version = f"{found[1]}.{found[2]}" if found else "of an unknown version"
        return f"nvcc {version} does not fit torch's CUDA {built_for}: another major version"
    return None


def extension(with_cuda: bool):
    """c2v_sim._C with or without the CUDA sources."""
    from torch.utils import cpp_extension

    # AVX2 is checked when the library is loaded; other machines take the torch reference.
    simd = ["-mavx2", "-mfma", "-mf16c"] if platform.machine() in ("x86_64", "AMD64") else []
    cxx = ["-O3", "-std=c++20", "-fopenmp-simd", STABLE_ABI, "-DPy_LIMITED_API=0x030b0000", *simd]
    return (cpp_extension.CUDAExtension if with_cuda else cpp_extension.CppExtension)(
        name="c2v_sim._C",
        sources=CPU_SOURCES + (CUDA_SOURCES if with_cuda else []),
        include_dirs=[str(Path("csrc").resolve())],
        depends=HEADERS + CUDA_SOURCES,
        extra_compile_args={"cxx": cxx, "nvcc": ["-O3", "-std=c++20", STABLE_ABI, "-DUSE_CUDA"]},
        define_macros=[("USE_CUDA", None)] if with_cuda else [],
        py_limited_api=True,
    )


def build_command(with_cuda: bool):
    """The build: with CUDA, else for the CPU alone, else a message; never a failed installation."""
    from torch.utils import cpp_extension

    class OptionalBuild(cpp_extension.BuildExtension):
        def build_extensions(self) -> None:
            for cuda in (True, False) if with_cuda else (False,):
                # In place: setuptools has noted names and paths in the extension that it knows.
                vars(self.extensions[0]).update(vars(extension(cuda)))
                try:
                    return super().build_extensions()
                except Exception as error:
                    if os.environ.get("C2V_SIM_REQUIRE_NATIVE"):
                        raise
                    kind = "CUDA" if cuda else "native"
                    say(
                        f"the {kind} operators are NOT built ({type(error).__name__}: {error}). "
                        + ("Those for the CPU are tried alone." if cuda else HOW_TO_REBUILD)
                    )
            for stale in Path("c2v_sim").glob("_C*.so"):  # of other sources than these
                stale.unlink()
            self.extensions = []

        def copy_extensions_to_source(self) -> None:
            if self.extensions:
                super().copy_extensions_to_source()

    return OptionalBuild


def extension_arguments() -> dict:
    """Keyword arguments for setup(): the extension, or nothing with the reason said."""
    if os.environ.get("C2V_SIM_NO_NATIVE"):
        say("C2V_SIM_NO_NATIVE is set: native operators are not built, torch references run.")
        return {}
    if not torch_is_found():
        say(
            "torch is not installed yet, so the native operators are NOT built: torch references "
            f"run. {HOW_TO_REBUILD}"
        )
        return {}
    import torch
    from torch.utils import cpp_extension

    reason = why_no_cuda(torch.version.cuda, cpp_extension.CUDA_HOME)
    if reason and torch.version.cuda:
        say(f"the CUDA operators are not built, only those for the CPU: {reason}.")
    if not torch.cuda.is_available():
        os.environ.setdefault("TORCH_CUDA_ARCH_LIST", GPUS)
    return {
        "ext_modules": [extension(with_cuda=reason is None)],
        "cmdclass": {"build_ext": build_command(with_cuda=reason is None)},
        "options": {"bdist_wheel": {"py_limited_api": "cp311"}},
    }


if __name__ == "__main__":
    # kernels/ is mapped into the package by pyproject.toml, where no search finds it.
    packages = [*find_packages(include=["c2v_sim*"]), "c2v_sim.kernels"]
    setup(packages=packages, **extension_arguments())
