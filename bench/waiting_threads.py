"""Experiment: threads that wait for one another by spinning or by sleeping, beside other work.

    python bench/waiting_threads.py [--beside 0 1 2] [--repeats N]

Seconds a step of DSA-IGN (batch 128, two threads, no dropout), with OpenMP's default and with
OMP_WAIT_POLICY=passive, beside so many processes that each keep a core busy. The policy is read
when torch is loaded, so every measurement is a process of its own; the two kinds alternate.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

POLICIES: dict[str, dict[str, str]] = {"default": {}, "passive": {"OMP_WAIT_POLICY": "passive"}}
BUSY = "x = 0\nwhile True: x += 1"
WARM_UP, STEPS = 5, 20


def measure() -> float:
    """Median seconds of a step, in this process."""
    import torch
    from bench_index_training import BATCH, our_step

    torch.set_num_threads(2)
    random = torch.Generator().manual_seed(0)
    d, label = (
        torch.nn.functional.normalize(torch.randn(BATCH, 512, generator=random)) for _ in "dl"
    )
    step, seconds = our_step(0.0, d, label), []
    for _ in range(WARM_UP + STEPS):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[WARM_UP:])


def measured_with(policy: dict[str, str]) -> float:
    environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"} | policy
    command = [sys.executable, "-P", __file__, "--child"]
    return float(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--beside", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        sys.path.insert(0, os.path.dirname(__file__))
        print(measure())
        return
    for count in arguments.beside:
        busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
        times: dict[str, list[float]] = {name: [] for name in POLICIES}
        try:
            for _ in range(arguments.repeats):
                for name, policy in POLICIES.items():
                    times[name].append(measured_with(policy))
        finally:
            for process in busy:
                process.kill()
        medians = {name: statistics.median(of_kind) for name, of_kind in times.items()}
        shown = ", ".join(f"{name} {1000 * m:.0f} ms a step" for name, m in medians.items())
        ratio = medians["default"] / medians["passive"]
        print(f"{count} busy processes beside: {shown}; default / passive {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
