"""index_losses, forward and backward, against the same formulas in eager torch and torch.compile.

pytest bench/bench_index_losses.py -k "not compiled and not memory"
"""

# ruff: noqa: E741  (l is the name in the specification)

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from c2v_sim.ops import index_losses

DIM = 512


def eager(z, u, l):
    z, u, l = F.normalize(z), F.normalize(u), F.normalize(l)
    diagonal = torch.eye(len(u), dtype=torch.bool)
    sim = (1 - (z * l).sum(1)).mean()
    orth = (z @ u.T).abs().mean()
    div = (u @ u.T).masked_fill(diagonal, -torch.inf).logsumexp(1).mean()
    return sim, orth, div


def problem(rows):
    g = torch.Generator().manual_seed(0)
    return [torch.randn(rows, DIM, generator=g).requires_grad_() for _ in range(3)]


def step(losses, inputs):
    sim, orth, div = losses(*inputs)
    return torch.autograd.grad(sim + orth + 0.5 * div, inputs)


def flops(rows):
    """Two triangular products and four square ones, as one would count them with S kept."""
    return 2 * rows**2 * DIM * (1 + 2 + 0.5 + 1)


@pytest.mark.parametrize("rows", [128, 1024, 4096, 8192])
def test_index_losses(compare, rows):
    inputs = problem(rows)
    compare(
        lambda: step(index_losses, inputs),
        {"eager": lambda: step(eager, inputs)},
        flops=flops(rows),
        rounds=15 if rows <= 1024 else 3,
    )


@pytest.mark.parametrize("rows", [128, 1024])
def test_index_losses_compiled(compare, rows):
    inputs = problem(rows)
    compiled = torch.compile(eager, dynamic=False)
    compare(
        lambda: step(index_losses, inputs), {"compiled": lambda: step(compiled, inputs)},
        flops=flops(rows),
    )  # fmt: skip


@pytest.mark.parametrize("rows", [128, 1024])
def test_index_losses_forward(compare, rows):
    inputs = [x.detach() for x in problem(rows)]
    compare(
        lambda: index_losses(*inputs),
        {"eager": lambda: eager(*inputs)},
        flops=2 * rows**2 * DIM * 1.5,
    )


def resident(field: str) -> float:
    """MiB from /proc/self/status: VmRSS now, or VmHWM, the most since it was last reset."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def peak_growth(which: str, rows: int) -> float:
    """MiB by which resident memory grows at most in one step; run in a new process (Linux)."""
    losses = {"fused": index_losses, "eager": eager}[which]
    step(losses, problem(64))  # lazy initialisation
    inputs = problem(rows)
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    before = resident("VmRSS")
    step(losses, inputs)
    return resident("VmHWM") - before


@pytest.mark.parametrize("rows", [1024, 4096, 8192])
def test_peak_memory(capsys, rows):
    """Resident memory of one step, in units of one [B, D] tensor: constant in B when O(B·D)."""
    grown = {}
    for which in ("fused", "eager"):
        done = subprocess.run(
            [sys.executable, "-P", __file__, which, str(rows)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        grown[which] = json.loads(done.stdout)
    unit = rows * DIM * 4 / 2**20
    with capsys.disabled():
        cells = [f"{k} {v:.0f} MiB = {v / unit:.1f} tensors [B, D]" for k, v in grown.items()]
        print(f"\npeak memory growth, B = {rows}: " + ", ".join(cells))
    assert grown["fused"] < 24 * unit + 32


if __name__ == "__main__":
    print(json.dumps(peak_growth(sys.argv[1], int(sys.argv[2]))))
