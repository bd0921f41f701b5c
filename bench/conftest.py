"""Interleaved comparison for pytest-benchmark, with the machine's limits measured in the same run.

CPU timings drift, so alternatives are never timed one after the other: before every round of
the fused operator each baseline runs once, and ratios are of medians over those rounds.
"""

import statistics
import time
from collections.abc import Callable

import pytest
import torch

ROUNDS = 15
_rows: list[dict] = []


def pytest_addoption(parser) -> None:
    parser.addoption(
        "--compiled",
        action="store_true",
        help="also time torch.compile of each eager baseline (a minute per case to compile)",
    )


def seconds(f: Callable[[], object]) -> float:
    start = time.perf_counter()
    f()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


@pytest.fixture(scope="session")
def limits() -> dict[str, float]:
    """Measured here and now: bytes/s of a triad (as in STREAM) and of reading, flop/s of sgemm."""
    n = 2**25  # 3 × 128 MiB, beyond any cache
    a, b, c = (torch.ones(n) for _ in range(3))
    triad = min(seconds(lambda: torch.add(b, c, alpha=2.0, out=a)) for _ in range(10))
    read = min(seconds(a.sum) for _ in range(10))
    x, y = torch.randn(2048, 2048), torch.randn(2048, 2048)
    gemm = min(seconds(lambda: x @ y) for _ in range(10))
    return {"bytes": 12 * n / triad, "read": 4 * n / read, "flops": 2 * 2048**3 / gemm}


@pytest.fixture
def compare(benchmark, limits, request):
    """compare(fused, {"eager": f, …}, bytes=…, flops=…): interleaved medians, ratios, fractions.

    `bytes`/`flops` are what the operation must move or compute at the least; the fraction of
    the measured limit follows (for `read_only` operations that of reading). Returns the row that
    is printed at the end and stored in pytest-benchmark's extra_info (`--benchmark-json FILE`).
    """

    def run(
        fused: Callable[[], object],
        baselines: dict[str, Callable[[], object]],
        *,
        bytes: float | None = None,
        flops: float | None = None,
        read_only: bool = False,
        rounds: int = ROUNDS,
    ) -> dict:
        if request.config.getoption("--compiled") and "eager" in baselines:
            baselines = baselines | {"compiled": torch.compile(baselines["eager"])}
        times: dict[str, list[float]] = {name: [] for name in baselines}
        for f in (fused, *baselines.values()):  # warm up: caches, lazy imports, torch.compile
            f()
            f()

        def time_baselines() -> None:
            for name, f in baselines.items():
                times[name].append(seconds(f))

        benchmark.pedantic(fused, setup=time_baselines, rounds=rounds, iterations=1)
        median = benchmark.stats.stats.median
        row = {"case": request.node.name, "ms": 1e3 * median}
        for name, values in times.items():
            row[f"{name} ms"] = 1e3 * statistics.median(values)
            row[f"{name} ratio"] = statistics.median(values) / median
        if bytes is not None:
            limit = limits["read" if read_only else "bytes"]
            row |= {"GB/s": bytes / median / 1e9, "of bandwidth": bytes / median / limit}
        if flops is not None:
            row |= {"GFLOP/s": flops / median / 1e9, "of sgemm": flops / median / limits["flops"]}
        benchmark.extra_info |= row | {"threads": torch.get_num_threads()}
        _rows.append(row)
        return row

    return run


def pytest_terminal_summary(terminalreporter) -> None:
    if not _rows:
        return
    threads = torch.get_num_threads()
    terminalreporter.section(f"interleaved medians, {threads} threads; ratio > 1: faster")
    for row in _rows:
        cells = [f"{k} {v:.3g}" for k, v in row.items() if k != "case"]
        terminalreporter.write_line(f"{row['case']}: " + ", ".join(cells))
