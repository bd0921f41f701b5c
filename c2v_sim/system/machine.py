"""Where torch computes, with how many threads inside an operator, and how many cores there are.

The sum inside an operator depends on how many threads share it, so wherever a bit of a result is
decided the number is fixed, not the machine's.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

DEVICES = ("auto", "cpu", "cuda")


@contextmanager
def intra_op_threads(count: int) -> Iterator[None]:
    """`count` intra-op threads inside, the former number outside."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def usable_cores() -> int:
    """The cores that this process may use, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def choose_device(name: str) -> torch.device:
    """The torch device for `auto`, `cpu` or `cuda`."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda: torch sees no CUDA device here; use --device cpu or auto")
    return torch.device(name)
