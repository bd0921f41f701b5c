"""The machine, as torch uses it: device, cores, threads inside an operator, memory, same bits.

The sum inside an operator depends on how many threads share it, so wherever a bit of a result is
decided the number is fixed, not the machine's.
"""

import ctypes
import os
import platform
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch

from c2v_sim.system import ranks

Result = TypeVar("Result")
DEVICES = ("auto", "cpu", "cuda")
# mallopt's parameters, from glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGEST = 2**31 - 1  # mallopt takes a C int
_keeping = threading.Event()  # whether this process keeps freed memory


def choose_device(name: str) -> torch.device:
    """The torch device for `auto`, `cpu` or `cuda`."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda: torch sees no CUDA device here; use --device cpu or auto")
    if name == "cuda" and ranks.size() > 1:
        if ranks.local_rank() >= torch.cuda.device_count():
            raise ValueError(
                f"device cuda: {ranks.local_size()} ranks on a host with "
                f"{torch.cuda.device_count()} GPUs; start one for each GPU, or use --device cpu"
            )
        torch.cuda.set_device(ranks.local_rank())
        return torch.device(name, ranks.local_rank())
    return torch.device(name)


def usable_cores() -> int:
    """The cores that this process may use, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_name() -> str:
    """What the CPU calls itself."""
    return _cpu_says("model name") or platform.processor() or platform.machine()


def cpu_family() -> tuple[str, int]:
    """Maker and family: (`AuthenticAMD`, 26); (``, 0) where the system does not say."""
    family = _cpu_says("cpu family")
    return _cpu_says("vendor_id"), int(family) if family.isdecimal() else 0


@cache
def _cpu_says(key: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((s.split(":", 1)[1].strip() for s in lines if s.startswith(key)), "")


@contextmanager
def intra_op_threads(count: int) -> Iterator[None]:
    """`count` intra-op threads inside, the former number outside."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def free_memory(device: torch.device) -> int:
    """Bytes that can be taken now on `device`; ranks on one host share its memory."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available // ranks.local_size()


def keep_freed_memory() -> bool:
    """Tell glibc to keep freed memory for reuse; True if it accepted, False without glibc.

    glibc maps every block above 32 MiB afresh and unmaps it when it is freed, and it gives back
    the end of the heap. A training step that makes the same tensors as the one before it then
    spends up to half of its time on page faults. Keeping the memory costs its peak amount until
    the process ends, which is what a simulation needs anyway.

    For the whole process; call it at start-up, before threads and large tensors exist. All
    threads share one arena afterwards: only that one can hold a large tensor's memory, the
    arenas of threads are cut into heaps of 64 MiB.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):  # musl, macOS: other allocators, other knobs
        return False
    settings = {_M_TRIM_THRESHOLD: _LARGEST, _M_MMAP_THRESHOLD: _LARGEST, _M_ARENA_MAX: 1}
    accepted = [libc.mallopt(parameter, value) for parameter, value in settings.items()]
    _keeping.set()
    return all(accepted)


keep_freed_memory_once = cache(keep_freed_memory)


class _Heap(ctypes.Structure):
    """What glibc's mallinfo2 tells; fordblks are the bytes that are free."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd",
            "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


def give_back_memory(at_least: int = 128 << 20) -> bool:
    """Give back what keep_freed_memory has kept, where it is much; whether that was done.

    Between two kinds of work, training and evaluation, whose tensors differ in size: what one has
    freed does not fit the other, and the process would take the sum of both.
    """
    libc = ctypes.CDLL(None)
    if not _keeping.is_set() or not hasattr(libc, "mallinfo2"):
        return False
    libc.mallinfo2.restype = _Heap
    return libc.mallinfo2().fordblks >= at_least and bool(libc.malloc_trim(0))


@contextmanager
def nothing_kept(above: int = 1 << 20) -> Iterator[None]:
    """Inside, blocks of more bytes than `above` are mapped each by itself, also where freed memory
    is kept: what is made once, moved and dropped leaves no holes among the tensors of later."""
    keeping = _keeping.is_set()
    if keeping:
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, above)
    try:
        yield
    finally:
        if keeping:
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGEST)


def in_own_thread(work: Callable[[], Result]) -> Result:
    """What `work` returns, of a thread that ends: what libraries have kept for it, as oneDNN does
    the working space of its largest convolution, is freed."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(work).result()


@contextmanager
def deterministic(on: bool, device: torch.device) -> Iterator[None]:
    """Deterministic operators inside (`on`) or torch's quickest ones; the former mode outside.

    The switches are torch's and hold for all threads of the process. An operator that has no
    deterministic form then raises an error that names it. On the CPU the operators of the models
    here are deterministic anyway; on CUDA other algorithms of cuDNN, cuBLAS and of scatter are
    chosen.
    """
    if device.type == "cuda" and on:
        # Read by cuBLAS when it starts on a device; without it torch refuses matrix products.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    memory: Any = torch.utils.deterministic  # its switch is no attribute that a checker can see
    cudnn = torch.backends.cudnn
    mode = torch.get_deterministic_debug_mode()
    before = (memory.fill_uninitialized_memory, cudnn.deterministic, cudnn.benchmark)
    # The same switch as torch.use_deterministic_algorithms, which besides imports the compiler
    # (seconds) to tell it; nothing is compiled here.
    torch.set_deterministic_debug_mode("error" if on else "default")
    cudnn.deterministic, cudnn.benchmark = on, device.type == "cuda" and not on
    if mode == 0:
        # Filling every new tensor with NaN finds errors, at a cost; whoever wants it has already
        # switched the mode on.
        memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        memory.fill_uninitialized_memory, cudnn.deterministic, cudnn.benchmark = before
