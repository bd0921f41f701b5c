"""python -m c2v_sim.doctor: which backends run here, and why the others do not.

Prints the machine, torch and its threads, a table operator × backend for the tensors of this
machine's device, how cohorts of some models are trained and why, and what the deterministic mode of
a run costs. `--measure` adds the two limits that kernels are judged by: memory bandwidth (a
STREAM-like triad) and float32 matrix multiplication. `--gpu-check` compares every operator and
every way of training on the GPU with one another (gpu_check/), writes a file, and says in one
sentence what to report; without a GPU it does what a CPU can.
"""

import argparse
import os
import platform
import statistics
import sys
import textwrap
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
import torch.nn.functional as F

import c2v_sim.ops  # noqa: F401  (imports every operator, which lists itself)
from c2v_sim.algorithms import Algorithm
from c2v_sim.config import RunConfig
from c2v_sim.gpu_check.checks import all_checks
from c2v_sim.gpu_check.limits import measure, seconds
from c2v_sim.gpu_check.outcomes import FAILED, Outcome, run_all, what_to_report, write_report
from c2v_sim.models import build_model
from c2v_sim.ops._dispatch import BACKENDS, OPERATORS, native_missing
from c2v_sim.simulator.build import local_training
from c2v_sim.system.machine import (
    choose_device,
    cpu_name,
    deterministic,
    intra_op_threads,
    usable_cores,
)
from c2v_sim.system.output import printed
from c2v_sim.training.stacked import choose_path


def machine(device: torch.device) -> dict[str, str]:
    """Facts about machine and software, in the order of printing."""
    return {
        "machine": f"{platform.system()} {platform.machine()}, {cpu_name()}",
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


def training_paths(device: torch.device, cohort: int = 10) -> dict[str, str]:
    """How FedAvg trains cohorts of some models for 32×32 images: stacked or not, and why."""
    local, x = local_training(RunConfig()), torch.zeros(2, 3, 32, 32)
    models = {
        name: build_model(name, classes=10, input_shape=(32, 32, 3), seed=0)
        for name in ("linear", "mlp", "cnn")
    }
    return {
        name: str(choose_path(model, x, local, Algorithm(), cohort, "auto", device))
        for name, model in models.items()
    }


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
            return seconds(lambda: F.cross_entropy(model(x), y).backward(), device)

    with intra_op_threads(1):
        step_seconds(True), step_seconds(False)  # warm up
        ratios = [step_seconds(True) / step_seconds(False) for _ in range(pairs)]
    low, median, high = statistics.quantiles(ratios, n=4)
    return low, median, high


def main(arguments: list[str] | None = None) -> int:
    """Run the command; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m c2v_sim.doctor", description=__doc__)
    parser.add_argument("--measure", action="store_true", help="measure bandwidth and sgemm")
    parser.add_argument("--gpu-check", action="store_true", help="check everything on the GPU")
    parser.add_argument(
        "--output", type=Path, default=Path("c2v_sim-gpu-check.json"), help="where its facts go"
    )
    options = parser.parse_args(arguments)
    if options.gpu_check:
        return check_gpu(options.output)
    return printed(lambda: show(options.measure), "there is nothing else that it leaves")


def check_gpu(path: Path) -> int:
    """Run all checks, write `path`; the exit code, 1 where a check failed."""
    device = choose_device("auto")
    outcomes: list[Outcome] = []

    def tell() -> None:
        for outcome in run_all(all_checks(device)):
            outcomes.append(outcome)
            print(f"{outcome} ({outcome.seconds:.1f} s)", flush=True)
        write_report(path, machine(device), outcomes)
        gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        print(f"\n{what_to_report(path, outcomes, gpu)}")

    code = printed(tell, f"{path} has what was found, if it is there")
    return code or int(any(outcome.status == FAILED for outcome in outcomes))


def show(measured: bool) -> None:
    device = choose_device("auto")
    for name, fact in machine(device).items():
        print(f"{name:<8} {fact}")
    print()
    tensor = torch.zeros(1, 1, device=device)
    taken = {name: operator.choose(None, tensor) for name, operator in OPERATORS.items()}
    print(table(availability(device), taken))
    print(
        "\nhow a cohort of 10 clients is trained (a run says it of its own model, simulator.path)"
    )
    for name, path in training_paths(device).items():
        print(f"  {name:<8}{path}")
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
