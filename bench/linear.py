"""Linear layers by oneDNN beside MKL: `python bench/linear.py`.

Forward and all gradients of one layer on one thread, the two alternating; CPU time, medians, and
GFLOP/s.
Where oneDNN is not taken on this CPU, both columns are MKL's.
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F

from c2v_sim.ops.layers.linear import linear, mkl_is_narrow, pays
from c2v_sim.system.machine import cpu_name

CASES = [  # rows, inputs, outputs
    (32, 64, 64), (32, 512, 10), (32, 256, 128), (32, 512, 64), (32, 256, 256), (64, 256, 256),
    (32, 512, 512), (32, 1600, 512), (50, 1600, 512), (100, 1600, 512), (7, 1600, 512),
    (16, 1600, 512), (50, 256, 80), (1600, 256, 512),
]  # fmt: skip


def seconds_of(layer, x, w, bias, grad_y):
    begin = time.thread_time()
    layer(x, w, bias).backward(grad_y)
    return time.thread_time() - begin


def measure(rows, inputs, outputs, repeats):
    x, w = torch.randn(rows, inputs), torch.randn(outputs, inputs) / inputs**0.5
    tensors = [t.requires_grad_() for t in (x, w, torch.randn(outputs))]
    grad_y = torch.randn(rows, outputs)
    times = {layer: [] for layer in (F.linear, linear)}
    for _ in range(repeats):
        for layer, taken in times.items():
            taken.append(seconds_of(layer, *tensors, grad_y))
    mkl, ours = (statistics.median(taken[repeats // 4 :]) for taken in times.values())
    ratio = statistics.median(a / b for a, b in zip(*times.values(), strict=True))
    work = 6e-9 * rows * inputs * outputs
    taken = "oneDNN" if pays(*tensors[:2]) else "MKL"
    print(
        f"| {rows}×{inputs}→{outputs} | {taken} | {1e6 * mkl:.0f}, {1e6 * ours:.0f} | "
        f"{work / mkl:.0f}, {work / ours:.0f} | {ratio:.2f} |"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=60)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    where = "uses half of its vectors" if mkl_is_narrow() else "is taken for all"
    print(f"{cpu_name()}; MKL {where}\n\n| layer | taken | µs: MKL, ours | GFLOP/s | ratio |")
    print("|---|---|---|---|---|")
    for case in CASES:
        measure(*case, repeats)


if __name__ == "__main__":
    main()
