"""What every operator test shares: the backends to try, the sizes, and the tolerance rule."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

# 1, primes, and one below, at and above the powers of two that kernels use as block sizes.
SIZES = (1, 2, 3, 7, 31, 32, 33, 63, 64, 65, 127, 128, 129)
FUSED = ("native", "triton")
WITH_CUDA = (*FUSED, "cuda")  # for operators with a csrc/cuda/<op>.cu; skipped without a GPU
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

# Absolute slack per dtype, for results that are zero in exact arithmetic.
ATOL = {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 1e-3}


def require(operator, backend: str, *args) -> None:
    """Skip with the reason when `backend` cannot serve these arguments on this machine."""
    if reason := operator.unavailable(backend, *args):
        pytest.skip(f"{operator.name}: {reason}")


def assert_as_good_as_torch(
    got: Tensor, torch32: Tensor, exact: Tensor, what: str = "", atol: float | None = None
) -> None:
    """The rule of the project: error against float64 at most twice that of torch in float32.

    Both errors are the largest over the tensor; `atol` (table above) covers a torch that
    happens to be exact.
    """
    assert got.shape == exact.shape, f"{what}: shape {tuple(got.shape)}, not {tuple(exact.shape)}"
    assert not got.isnan().any() or exact.isnan().any(), f"{what}: NaN in the result"
    if exact.numel() == 0:
        return
    slack = ATOL[torch32.dtype] if atol is None else atol
    scale = max(1.0, exact.abs().max().item())
    error = (got.double() - exact).abs().max().item()
    reference = (torch32.double() - exact).abs().max().item()
    assert error <= 2 * reference + slack * scale, (
        f"{what}: error {error:.3g}, torch {reference:.3g}"
    )


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
