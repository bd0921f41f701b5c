"""What the machine can do, and how long something takes on it, until its device is done."""

import statistics
import time
from collections.abc import Callable

import torch


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """How long `work` takes, until the device is done."""
    start = time.perf_counter()
    work()
    wait_for(device)
    return time.perf_counter() - start


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def median_seconds(work: Callable[[], object], device: torch.device, repeats: int = 15) -> float:
    """Of one call. On a GPU each sample is of so many calls that starting them does not count."""
    seconds(work, device), seconds(work, device)  # compiled and warm
    calls = 1
    if device.type == "cuda":
        calls = max(1, min(1000, int(2e-3 / seconds(work, device))))

    def many() -> None:
        for _ in range(calls):
            work()

    return statistics.median(seconds(many, device) for _ in range(repeats)) / calls


def measure(device: torch.device, elements: int = 2**25, size: int = 2048) -> dict[str, float]:
    """Bytes/s of a triad over `elements` floats, flop/s of a size³ product; best of ten."""
    a, b, c = (torch.ones(elements, device=device) for _ in range(3))
    x, y = (torch.ones(size, size, device=device) for _ in range(2))
    triad, product = (
        min(seconds(work, device) for _ in range(10))
        for work in (lambda: torch.add(b, c, alpha=2.0, out=a), lambda: x @ y)
    )
    return {"bandwidth": 3 * 4 * elements / triad, "sgemm": 2 * size**3 / product}
