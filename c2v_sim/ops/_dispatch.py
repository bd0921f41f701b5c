"""Chooses which implementation of an operator runs, and says why one cannot.

An operator has one name everywhere and up to four backends:

  torch   the reference beside the operator: plain torch, any device and dtype; the definition
  native  C++ for the CPU (csrc/cpu/<op>.cpp), the CPU key of torch.ops.c2v_sim.<op>
  cuda    CUDA C++ (csrc/cuda/<op>.cu), the CUDA key of the same torch operator
  triton  kernels/<op>.py, torch.ops.c2v_sim_triton.<op>

`backend=None` takes the first that can serve the arguments; a named backend runs or raises.
"""

import importlib
import os
import platform
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result", covariant=True)  # what an operator returns

BACKENDS = ("native", "cuda", "triton", "torch")
FLOAT32 = (torch.float32,)
STORAGE = (torch.float32, torch.bfloat16, torch.float16)

OPERATORS: dict[str, "Operator[object]"] = {}  # every operator that was imported, by name
_triton_library = torch.library.Library("c2v_sim_triton", "FRAGMENT")


def _load_native() -> str | None:
    """Load c2v_sim._C; the reason as a sentence when that is impossible, else None."""
    files = sorted(Path(__file__).parent.parent.glob("_C*.so"))
    if not files:
        return (
            "the extension c2v_sim._C was not built: torch or g++ was missing when the package was "
            "installed. With both, run `make setup` in a checkout, else "
            "`pip install --no-cache-dir --no-deps --force-reinstall c2v_sim`"
        )
    x86 = platform.machine() in ("x86_64", "AMD64")
    if x86 and torch.backends.cpu.get_cpu_capability() in ("DEFAULT", "NO AVX"):
        return "this CPU has no AVX2, which c2v_sim._C is compiled for"
    try:
        torch.ops.load_library(str(files[0]))
    except OSError as error:
        return f"{files[0].name} does not load ({error}); run `make setup` to rebuild it"
    return None


native_missing: str | None = _load_native()


@cache  # a small operator takes less time than the dispatcher's answer
def _has_kernel(name: str, key: str) -> bool:
    if native_missing is not None or not hasattr(torch.ops.c2v_sim, name):
        return False  # not built, or built before this operator existed
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"c2v_sim::{name}", key)


def _triton_missing(on_cpu: bool) -> str | None:
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if on_cpu and not interpreted:
        return "Triton kernels run on CUDA tensors (on the CPU only under TRITON_INTERPRET=1)"
    try:
        importlib.import_module("triton")
    except ImportError:
        return "the package triton is not installed"
    return None


class Operator(Generic[Result]):
    """One operator's backends; calling it dispatches. Built once, at import, by each op file."""

    def __init__(
        self,
        name: str,
        schema: str,
        reference: Callable[..., Result],
        *,
        fake: Callable[..., object],
        setup_context: Callable[..., None] | None = None,
        backward: Callable[..., object] | None = None,
        native: bool = True,
        triton: bool = True,
        dtypes: Sequence[torch.dtype] = FLOAT32,
    ) -> None:
        """`schema` is torch's, without the name; `reference` takes the same arguments.

        `fake`, `setup_context` and `backward` are those of torch.library; they are registered
        for the native and the Triton operator alike, so gradients are wired once. `native=False`:
        no C++ for the CPU was ever written. `triton=True` promises a function `<name>` in
        kernels/<name>.py. `dtypes` are those that the fused
        backends accept for floating tensors; the reference takes everything.
        """
        self.name, self.schema, self.reference, self.dtypes = name, schema, reference, tuple(dtypes)
        self.has_native, self.has_triton = native, triton
        OPERATORS[name] = self
        # Asked once: the question cannot be traced by torch.compile.
        self.native_keys = {key for key in ("CPU", "CUDA") if _has_kernel(name, key)}
        qualified = []
        if native_missing is None and hasattr(torch.ops.c2v_sim, name):
            qualified.append(f"c2v_sim::{name}")
        if triton:
            _triton_library.define(name + schema)
            _triton_library.impl(name, self._launch_triton, "CompositeExplicitAutograd")
            qualified.append(f"c2v_sim_triton::{name}")
        for op in qualified:
            torch.library.register_fake(op, fake)
            if backward is not None:
                torch.library.register_autograd(op, backward, setup_context=setup_context)

    def _launch_triton(self, *args: object) -> object:
        file = self.name.removesuffix("_backward")  # a gradient's kernels are beside the forward's
        module = importlib.import_module(f"c2v_sim.kernels.{file}")
        return getattr(module, self.name)(*args)

    def unavailable(self, backend: str, *args: object) -> str | None:
        """Why `backend` cannot serve these arguments, as a sentence; None when it can."""
        if backend not in BACKENDS:
            return f"unknown backend {backend!r}; known: {', '.join(BACKENDS)}"
        if backend == "torch":
            return None
        tensors = [a for a in args if isinstance(a, Tensor)]
        on_cpu = all(t.is_cpu for t in tensors)
        if backend == "native":
            if native_missing:
                return native_missing
            if not self.has_native:
                return f"c2v_sim has no kernel {self.name} for the CPU"
            if "CPU" not in self.native_keys:
                return f"c2v_sim._C has no CPU kernel {self.name}; run `make setup` to rebuild it"
            if not on_cpu:
                return "native kernels take CPU tensors"
        if backend == "cuda":
            if on_cpu:
                return "CUDA kernels take CUDA tensors"
            if "CUDA" not in self.native_keys:
                return f"c2v_sim._C was built without a CUDA kernel {self.name}"
        if backend == "triton":
            if not self.has_triton:
                return f"{self.name} has no Triton kernel"
            if reason := _triton_missing(on_cpu):
                return reason
        for t in tensors:
            if t.dtype not in self.dtypes and t.is_floating_point():
                known = ", ".join(str(d).removeprefix("torch.") for d in self.dtypes)
                return f"it takes {known}, not {str(t.dtype).removeprefix('torch.')}"
        return None

    def choose(self, backend: str | None, *args: object) -> str:
        """The backend that will run; raises RuntimeError when a named one cannot."""
        if backend is not None:
            if reason := self.unavailable(backend, *args):
                raise RuntimeError(f"{self.name}: backend {backend!r} cannot serve this: {reason}")
            return backend
        on_cpu = all(a.is_cpu for a in args if isinstance(a, Tensor))
        order = ("native", "torch") if on_cpu else ("cuda", "triton", "torch")
        return next(b for b in order if self.unavailable(b, *args) is None)

    def __call__(self, *args: object, backend: str | None = None) -> Result:
        chosen = self.choose(backend, *args)
        if chosen == "torch":
            return self.reference(*args)
        namespace = torch.ops.c2v_sim_triton if chosen == "triton" else torch.ops.c2v_sim
        return getattr(namespace, self.name)(*args)
