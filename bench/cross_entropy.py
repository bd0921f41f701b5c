"""How much of a local step is the loss: what a fused softmax and cross entropy could save at most.

    python bench/cross_entropy.py [--repeats N]

CPU time on one thread of cross entropy with its gradient for the logits, and of the whole step
(forward, loss, backward), medians of alternating runs; and of a fused loss of this package on so
few numbers that it is nothing but calls. A stacked mlp has no such call: its loss and gradient are
formed together (c2v_sim/training/stacked/chain.py).
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from c2v_sim.models import build_model
from c2v_sim.models.faster.layers import take_over_layers
from c2v_sim.ops import prepared_index, projection_orthogonality
from c2v_sim.system.machine import keep_freed_memory

CASES = {  # shape of a sample, classes, steps in one measurement
    "mlp": ((64,), 10, 50),
    "mlp of images": ((32, 32, 3), 10, 10),
    "cnn": ((32, 32, 3), 10, 2),
    "lstm": ((80,), 80, 1),
}
BATCH = 50


def contestants(name: str) -> dict[str, Callable[[], object]]:
    shape, classes, steps = CASES[name]
    model = build_model(name.split()[0], classes=classes, input_shape=shape, seed=0)
    take_over_layers(model)
    g = torch.Generator().manual_seed(0)
    channels_first = (shape[-1], *shape[:-1])
    x = torch.randn(BATCH, *channels_first, generator=g)
    if name == "cnn":
        model, x = (t.to(memory_format=torch.channels_last) for t in (model, x))
    if name == "lstm":
        x = torch.randint(0, classes, (BATCH, *shape), generator=g)
    y = torch.randint(0, classes, (BATCH,), generator=g)
    out = model(x).detach().requires_grad_()

    def loss() -> None:
        for _ in range(steps):
            torch.autograd.grad(F.cross_entropy(out, y), out)

    def step() -> None:
        for _ in range(steps):
            F.cross_entropy(model(x), y).backward()

    few = torch.randn(4, 8, generator=g).requires_grad_()
    index = prepared_index(torch.randn(2, 8, generator=g))

    def calls() -> None:
        for _ in range(steps):
            torch.autograd.grad(projection_orthogonality(few, index, prepared=True), few)

    return {"loss": loss, "step": step, "calls": calls}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    keep_freed_memory()
    for name, (_, _, steps) in CASES.items():
        runs = contestants(name)
        times: dict[str, list[float]] = {k: [] for k in runs}
        for _ in range(repeats + 1):
            for k, run in runs.items():
                begin = time.thread_time()
                run()
                times[k].append((time.thread_time() - begin) / steps)
        loss, step, calls = (1e3 * statistics.median(times[k][1:]) for k in times)
        share = f"{100 * loss / step:.2f} %"
        print(f"{name}: loss {loss:.3f} ms of {step:.2f} ms, {share}; calls {calls:.3f} ms")


if __name__ == "__main__":
    main()
