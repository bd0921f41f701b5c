"""What every operator test shares: the backends to try, the sizes, and the tolerance rule."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from c2v_sim.gpu_check.tolerance import beyond_torch

# 1, primes, and one below, at and above the powers of two that kernels use as block sizes.
SIZES = (1, 2, 3, 7, 31, 32, 33, 63, 64, 65, 127, 128, 129)
FUSED = ("native", "triton")
WITH_CUDA = (*FUSED, "cuda")  # for operators with a csrc/cuda/<op>.cu; skipped without a GPU
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def require(operator, backend: str, *args) -> None:
    """Skip with the reason when `backend` cannot serve these arguments on this machine."""
    if reason := operator.unavailable(backend, *args):
        pytest.skip(f"{operator.name}: {reason}")


def assert_as_good_as_torch(
    got: Tensor, torch32: Tensor, exact: Tensor, what: str = "", atol: float | None = None
) -> None:
    """The rule of the project: error against float64 at most twice that of torch in float32."""
    why = beyond_torch(got, torch32, exact, atol)
    assert not why, f"{what}: {why}"


def gradients(f: Callable[..., Tensor], inputs: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Value of scalar-valued f at `inputs` and the gradient for each of them."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    value = f(*leaves)
    return value.detach(), list(torch.autograd.grad(value, leaves))


def peak_growth(f: Callable[[], object]) -> int:
    """Bytes by which resident memory grows at most while f runs; skips where Linux does not say."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, the peak
    except OSError as error:
        pytest.skip(f"peak memory is not told here: {error}")
    before = _resident("VmRSS")
    f()
    return _resident("VmHWM") - before


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))
