"""The same bits every time: torch's deterministic operators, switched on for a while.

The switches are torch's and hold for all threads of the process. An operator that has no
deterministic form then raises an error that names it. On the CPU the operators of the models here
are deterministic anyway; on CUDA other algorithms of cuDNN, cuBLAS and of scatter are chosen.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def deterministic(on: bool, device: torch.device) -> Iterator[None]:
    """Deterministic operators inside (`on`) or torch's quickest ones; the former mode outside."""
    if device.type == "cuda" and on:
        # Read by cuBLAS when it starts on a device; without it torch refuses matrix products.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    memory: Any = torch.utils.deterministic
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
