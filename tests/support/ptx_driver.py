"""A driver for Triton that has no GPU: kernels are compiled for one, and their PTX runs here.

Everything before the launch is Triton's own: it binds the arguments, sees which are aligned or 1,
compiles that variant (without the assembler) and hands grid and arguments to the driver's launcher,
which is ours. `install` works in a process that does not interpret kernels; tests use `worker()`.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from multiprocessing import get_context

import numpy as np
import torch
from ptx_machine import run_grid
from ptx_memory import GlobalMemory
from ptx_parse import Program, PtxError, parse
from torch import Tensor

__all__ = ["PtxError", "changed", "install", "launched", "use", "worker"]

SHARED = {80: 163 * 1024, 90: 227 * 1024}  # bytes that a block may have

launched: list[tuple[str, str]] = []  # (module, kernel) of every launch
_change: Callable[[str], str] | None = None  # applied to the PTX, for tests of the tests


class Driver:
    """What Triton asks of a driver. Its device is chosen by the compute capability."""

    def __init__(self, capability: int) -> None:
        self.capability, self.utils, self.launcher_cls = capability, Utils(capability), Launcher

    def get_current_device(self) -> int:
        return self.capability  # Triton keeps what it compiled by device

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> object:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)


class Utils:
    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_device_properties(self, device: int) -> dict:
        return {"max_shared_mem": SHARED[self.capability]}

    def load_binary(self, name: str, ptx: bytes, shared: int, device: int) -> tuple:
        return name, ptx.decode(), 0, 0, 1024  # module, function, registers, spills, most threads


class Launcher:
    """Takes the place of Triton's CudaLauncher."""

    def __init__(self, source: object, metadata: object) -> None:
        self.function, self.types = source.fn, list(source.signature.values())
        self.warps, self.shared = metadata.num_warps, metadata.shared
        if metadata.global_scratch_size or metadata.num_ctas != 1:
            raise NotImplementedError("kernels with scratch memory or clusters of blocks")

    def __call__(
        self, x: int, y: int, z: int, stream: int, ptx: str, packed, metadata, enter, leave, *args
    ) -> None:
        memory = GlobalMemory()
        given = [(t, a) for t, a in zip(self.types, args, strict=True) if t != "constexpr"]
        parameters = [bits(t, a, memory) for t, a in given]
        parameters += [0, 0]  # scratch memory that no kernel has
        launched.append((self.function.fn.__module__, self.function.fn.__name__))
        program = parsed(ptx if _change is None else _change(ptx))
        run_grid(program, (x, y, z), 32 * self.warps, self.shared, memory, parameters)


@cache
def parsed(ptx: str) -> Program:
    return parse(ptx)


def bits(kind: str, value: object, memory: GlobalMemory) -> int:
    """What stands in the parameter of a kernel."""
    if kind.startswith("*"):
        assert isinstance(value, Tensor)
        return memory.add(value)
    if kind == "fp32":
        return int(np.float32(value).view(np.uint32))
    return int(value)


def use(capability: int) -> None:
    """What is compiled from now on is for this one."""
    import triton

    triton.runtime.driver.set_active(Driver(capability))


@contextmanager
def changed(change: Callable[[str], str]) -> Iterator[None]:
    """Meanwhile what `change` makes of the PTX runs in its place."""
    global _change
    _change = change
    try:
        yield
    finally:
        _change = None


def install() -> None:
    """From now on launches of this process run here, on tensors of the CPU."""
    from triton.backends.nvidia.compiler import CUDABackend

    from c2v_sim.ops import _dispatch

    use(80)
    CUDABackend.make_cubin = lambda self, ptx, metadata, options, capability: ptx.encode()
    _dispatch._triton_missing = lambda on_cpu: None
    torch.utils.deterministic.fill_uninitialized_memory = True  # as in conftest.py: NaN
    torch.use_deterministic_algorithms(True, warn_only=True)


def worker(cache_folder: str) -> ProcessPoolExecutor:
    """One process, without TRITON_INTERPRET, in which the driver is installed."""
    interpret = os.environ.pop("TRITON_INTERPRET", None)
    try:
        pool = ProcessPoolExecutor(1, get_context("spawn"), _start, (cache_folder,))
        pool.submit(os.getpid).result()
    finally:
        if interpret is not None:
            os.environ["TRITON_INTERPRET"] = interpret
    return pool


def _start(cache_folder: str) -> None:
    os.environ["TRITON_CACHE_DIR"] = cache_folder
    torch.set_num_threads(1)
    install()
