"""How far a fused operator may be from its definition: the rule of the project.

The largest error against float64 is at most twice that of torch in float32, plus `atol` for results
that are zero in exact arithmetic, in units of the largest number of the result, or of 1.
"""

import torch
from torch import Tensor

ATOL = {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 1e-3}


def beyond_torch(got: Tensor, torch32: Tensor, exact: Tensor, atol: float | None = None) -> str:
    """What breaks the rule, in words; empty where nothing does."""
    if got.shape != exact.shape:
        return f"shape {tuple(got.shape)}, not {tuple(exact.shape)}"
    if got.isnan().any() and not exact.isnan().any():
        return "NaN in the result"
    if exact.numel() == 0:
        return ""
    slack = ATOL[torch32.dtype] if atol is None else atol
    scale = max(1.0, exact.abs().max().item())
    error, reference = largest_error(got, exact), largest_error(torch32, exact)
    return "" if error <= 2 * reference + slack * scale else f"error {error:.3g}, {reference:.3g}"


def largest_error(got: Tensor, exact: Tensor) -> float:
    return (got.double() - exact).abs().max().item() if exact.numel() else 0.0


def beyond_norm(got: Tensor, torch32: Tensor, exact: Tensor, most: float = 1e-5) -> str:
    """The same for ops/layers/convolution.py, the exception: the error's norm by the truth's."""
    share = ((got.double() - exact).norm() / exact.norm().clamp_min(1e-30)).item()
    return "" if share <= most else f"error {share:.3g} of the norm, at most {most:g} is allowed"
