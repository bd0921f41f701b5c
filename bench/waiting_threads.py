"""Experiment: threads that wait for one another by spinning or by sleeping, beside other work.

    python bench/waiting_threads.py [--beside 0 1 2] [--repeats N] [--spins 1000 10000]

Seconds a step of DSA-IGN (batch 128, two threads, no dropout) beside so many processes that each
keep a core busy: with libgomp's own way to wait (a spin of milliseconds), with short spins
(GOMP_SPINCOUNT) and with none (OMP_WAIT_POLICY=passive). Both are read when torch is loaded, so
every measurement is a process of its own; the kinds alternate, and ratios are medians of those of
a repeat.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
# c2v_sim leaves a user's value alone: 300,000 is libgomp's own, where cores are enough.
LONG = {"libgomp": {"GOMP_SPINCOUNT": "300000"}}
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
    environment = {k: v for k, v in os.environ.items() if k not in VARIABLES} | policy
    command = [sys.executable, "-P", __file__, "--child"]
    return float(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--beside", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--spins", type=int, nargs="*", default=[1_000, 10_000])
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        sys.path.insert(0, os.path.dirname(__file__))
        print(measure())
        return
    short = {f"spin {n}": {"GOMP_SPINCOUNT": str(n)} for n in arguments.spins}
    policies = LONG | short | {"passive": {"OMP_WAIT_POLICY": "passive"}}
    for count in arguments.beside:
        busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
        try:
            repeats = [
                {name: measured_with(policy) for name, policy in policies.items()}
                for _ in range(arguments.repeats)
            ]
        finally:
            for process in busy:
                process.kill()
        print(f"{count} busy processes beside:")
        for name in policies:
            step = statistics.median(times[name] for times in repeats)
            ratio = statistics.median(times["libgomp"] / times[name] for times in repeats)
            print(f"  {name:<12} {1000 * step:4.0f} ms a step, {ratio:.2f} × libgomp", flush=True)


if __name__ == "__main__":
    main()
