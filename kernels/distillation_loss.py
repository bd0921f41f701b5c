"""distillation_loss: KL(softmax(a) || softmax(b)) and both gradients, one program a row."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _distillation_kernel(
    a, b, loss, grad_a, grad_b, size, classes, WITH_GRAD: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < classes
    x = tl.load(a + row * classes + columns, mask=inside, other=-float("inf")).to(tl.float32)
    y = tl.load(b + row * classes + columns, mask=inside, other=-float("inf")).to(tl.float32)
    top_x, top_y = tl.max(x, 0), tl.max(y, 0)
    p, q = tl.exp(x - top_x), tl.exp(y - top_y)
    sum_p, sum_q = tl.sum(p, 0), tl.sum(q, 0)
    apart = (top_x + tl.log(sum_p)) - (top_y + tl.log(sum_q))
    p, q = p / sum_p, q / sum_q
    log_ratio = tl.where(inside, (x - y) - apart, 0.0)
    divergence = tl.sum(p * log_ratio, 0)
    tl.store(loss + row, divergence)
    if WITH_GRAD:
        at = row * classes + columns
        tl.store(grad_a + at, p * (log_ratio - divergence) / size, mask=inside)
        tl.store(grad_b + at, (q - p) / size, mask=inside)


def distillation_loss(
    logits: Tensor, logits_p: Tensor, with_grad: bool
) -> tuple[Tensor, Tensor, Tensor]:  # 2 × [B, K] -> [], 2 × [B, K] or [0, K]
    """Launch on the current stream; a row is held in registers, so K is at most 8192."""
    size, classes = logits.shape
    if classes > 8192:
        raise ValueError(
            f"distillation_loss: the Triton kernel takes at most 8192 classes, got {classes}; "
            "use backend='torch'"
        )
    shape = (size if with_grad else 0, classes)
    grads = [logits.new_empty(shape, dtype=torch.float32) for _ in range(2)]
    if size == 0:
        return logits.new_zeros((), dtype=torch.float32), *grads
    losses = logits.new_empty(size, dtype=torch.float32)
    with torch.cuda.device_of(logits):
        _distillation_kernel[(size,)](
            logits.contiguous(), logits_p.contiguous(), losses, *grads, size, classes,
            WITH_GRAD=with_grad, BLOCK=triton.next_power_of_2(classes),
            num_warps=4 if classes <= 4096 else 8,
        )  # fmt: skip
        return losses.mean(), *grads


AOT = [
    (
        _distillation_kernel,
        {"a": "*fp32", "b": "*fp32", "loss": "*fp32", "grad_a": "*fp32", "grad_b": "*fp32",
         "size": "i32", "classes": "i32"},
        {"WITH_GRAD": True, "BLOCK": block},
        warps,
    )
    for block, warps in ((16, 4), (1024, 4), (4096, 4), (8192, 8))
]  # fmt: skip
