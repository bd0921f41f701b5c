"""python -m c2v_sim.doctor: which backends run here, and why the others do not.

Prints the machine, torch and its threads, a table operator × backend for the tensors of this
machine's device, and what the deterministic mode of a run costs. `--measure` adds the two limits
that kernels are judged by: memory bandwidth (a STREAM-like triad) and float32 matrix
multiplication.
"""

import argparse
import os
import platform
import statistics
import sys
import textwrap
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import torch
import torch.nn.functional as F

import c2v_sim.ops  # noqa: F401  (imports every operator, which lists itself)
from c2v_sim.models import build_model
from c2v_sim.ops._dispatch import BACKENDS, OPERATORS, native_missing
from c2v_sim.system.machine import choose_device, deterministic, intra_op_threads, usable_cores
from c2v_sim.system.output import printed


def machine(device: torch.device) -> dict[str, str]:
    """Facts about machine and software, in the order of printing."""
    return {
        "machine": f"{platform.system()} {platform.machine()}, {processor()}",
        "cores": f"{usable_cores()} usable of {os.cpu_count()}",
        "python": platform.python_version(),
        "torch": f"{torch.__version__}, {torch.get_num_threads()} intra-op threads, "
        f"{torch.backends.cpu.get_cpu_capability()}",
        "triton": _version("triton"),
        "numpy": _version("numpy"),
        "cuda": _cuda(),
        "native": native_missing or "c2v_sim._C is loaded",
        "device": str(device),
    }


def _cuda() -> str:
    if torch.version.cuda is None and torch.version.hip is None:
        return "this torch is a build without CUDA"
    if not torch.cuda.is_available():
        return f"torch is built for CUDA {torch.version.cuda}, but no GPU is visible"
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return f"{torch.version.cuda or torch.version.hip}, {', '.join(names)}"


def processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(s.split(":", 1)[1].strip() for s in lines if s.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown processor"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def availability(device: torch.device) -> dict[str, dict[str, str | None]]:
    """Operator -> backend -> None when it serves float32 tensors of `device`, else the reason."""
    tensor = torch.zeros(1, 1, device=device)
    return {
        name: {backend: operator.unavailable(backend, tensor) for backend in BACKENDS}
        for name, operator in sorted(OPERATORS.items())
    }


def table(rows: dict[str, dict[str, str | None]], taken: dict[str, str]) -> str:
    """yes or the number of a reason below; a star marks `taken`, what backend=None takes."""
    reasons: list[str] = []
    width = max(len(name) for name in rows)
    lines = [" ".join([" " * width, *(f"{b:>8}" for b in BACKENDS)])]
    for name, row in rows.items():
        cells = []
        for backend, reason in row.items():
            if reason is None:
                cells.append("yes *" if backend == taken[name] else "yes")
                continue
            if reason not in reasons:
                reasons.append(reason)
            cells.append(f"no ({reasons.index(reason) + 1})")
        lines.append(" ".join([f"{name:<{width}}", *(f"{c:>8}" for c in cells)]))
    lines.append("* runs when no backend is named")
    for number, reason in enumerate(reasons, start=1):
        lines += textwrap.wrap(f"({number}) {reason}", 96, subsequent_indent="    ")
    return "\n".join(lines)


def measure(device: torch.device, elements: int = 2**25, size: int = 2048) -> dict[str, float]:
    """Bytes/s of a triad over `elements` floats, flop/s of a size³ product; best of ten."""

    a, b, c = (torch.ones(elements, device=device) for _ in range(3))
    x, y = (torch.ones(size, size, device=device) for _ in range(2))
    triad, product = (
        min(_seconds(work, device) for _ in range(10))
        for work in (lambda: torch.add(b, c, alpha=2.0, out=a), lambda: x @ y)
    )
    return {"bandwidth": 3 * 4 * elements / triad, "sgemm": 2 * size**3 / product}


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """How long `work` takes, until the device is done."""
    start = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def deterministic_cost(
    device: torch.device, pairs: int = 15, batch: int = 32
) -> tuple[float, float, float]:
    """Time of a training step of the cnn with --deterministic by one without: quartiles.

    The steps alternate and neighbours are compared, so that what else the machine does slows both.
    """
    model = build_model("cnn", classes=10, input_shape=(32, 32, 3), seed=0).to(device)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, 3, 32, 32, generator=generator).to(device)
    y = torch.randint(10, (batch,), generator=generator).to(device)

    def step_seconds(on: bool) -> float:
        with deterministic(on, device):
            return _seconds(lambda: F.cross_entropy(model(x), y).backward(), device)

    with intra_op_threads(1):
        step_seconds(True), step_seconds(False)  # warm up
        ratios = [step_seconds(True) / step_seconds(False) for _ in range(pairs)]
    low, median, high = statistics.quantiles(ratios, n=4)
    return low, median, high


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m c2v_sim.doctor", description=__doc__)
    parser.add_argument("--measure", action="store_true", help="measure bandwidth and sgemm")
    options = parser.parse_args(arguments)
    return printed(lambda: show(options.measure), "there is nothing else that it leaves")


def show(measured: bool) -> None:
    device = choose_device("auto")
    for name, fact in machine(device).items():
        print(f"{name:<8} {fact}")
    print()
    tensor = torch.zeros(1, 1, device=device)
    taken = {name: operator.choose(None, tensor) for name, operator in OPERATORS.items()}
    print(table(availability(device), taken))
    low, median, high = (f"{100 * (ratio - 1):+.0f} %" for ratio in deterministic_cost(device))
    print(f"\n--deterministic (the default) costs {median} of a training step of the cnn")
    print(f"  (15 pairs of steps; the middle half of them: {low} to {high})")
    if measured:
        limits = measure(device)
        print()
        print(f"bandwidth {limits['bandwidth'] / 1e9:.1f} GB/s (triad, 12 bytes per element)")
        print(f"sgemm     {limits['sgemm'] / 1e9:.0f} GFLOP/s (2048³)")


if __name__ == "__main__":
    sys.exit(main())
