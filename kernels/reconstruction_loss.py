"""reconstruction_loss: sums of (d_hat - d)² by blocks, and the gradient for d_hat on the way."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048


@triton.jit
def _reconstruction_kernel(
    d_hat, d, sums, grad, size, scale, WITH_GRAD: tl.constexpr, BLOCK: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    apart = tl.load(d_hat + at, mask=inside, other=0.0).to(tl.float32)
    apart -= tl.load(d + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(sums + tl.program_id(0), tl.sum(apart * apart, 0))
    if WITH_GRAD:
        tl.store(grad + at, scale * apart, mask=inside)


def reconstruction_loss(
    d_hat: Tensor, d: Tensor, with_grad: bool
) -> tuple[Tensor, Tensor]:  # 2 × [B, D] -> [], [B, D] or [0, D]
    """Launch on the current stream."""
    (rows, dim), size = d_hat.shape, d_hat.numel()
    grad = d_hat.new_empty((rows if with_grad else 0, dim), dtype=torch.float32)
    if size == 0:
        return d_hat.new_zeros((), dtype=torch.float32), grad
    blocks = triton.cdiv(size, BLOCK)
    sums = d_hat.new_empty(blocks, dtype=torch.float32)
    with torch.cuda.device_of(d_hat):
        _reconstruction_kernel[(blocks,)](
            d_hat.contiguous(), d.contiguous(), sums, grad, size, 2 / size,
            WITH_GRAD=with_grad, BLOCK=BLOCK, num_warps=4,
        )  # fmt: skip
        return sums.sum() / size, grad


AOT = [
    (
        _reconstruction_kernel,
        {"d_hat": "*fp32", "d": "*fp32", "sums": "*fp32", "grad": "*fp32", "size": "i64",
         "scale": "fp32"},
        {"WITH_GRAD": True, "BLOCK": BLOCK},
        4,
    ),
]  # fmt: skip
