"""linear: x wᵀ + bias [N, O], by oneDNN on CPUs whose wide vectors MKL leaves unused.

torch makes float32 products by MKL, which on AMD's CPUs takes its AVX2 code, AVX-512 or not.
torch carries oneDNN too, for convolutions, and that goes by what the CPU can do. AMD's cores have
two units of 512 bits from Zen 5 on: there MKL leaves half of them unused, and oneDNN's products are
taken, in both gradients too, where they are large enough to repay the call (bench/linear.py). On
Zen 4 both kinds of vectors multiply at one rate; on Intel's CPUs MKL is faster. The choice depends
on shapes and the kind of CPU alone, so bits do not depend on lanes, ranks or load.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import has_torch_function

from c2v_sim.ops._loss import Context
from c2v_sim.system.machine import cpu_family

FEWEST_PRODUCTS, FEWEST_ROWS = 4_000_000, 8  # below, the calls cost what the products gain
ZEN_5 = 26  # the family of AMD's first CPUs with two units of 512 bits


def linear(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:  # [..., I] -> [..., O]
    """torch.nn.functional.linear(x, w, bias), differentiable in all three, also twice."""
    # Who watches the calls of torch (training/stacked) is to see the one that it knows.
    if has_torch_function((x, w)) or not pays(x, w):
        return F.linear(x, w, bias)
    return _Linear.apply(x.reshape(-1, x.shape[-1]), w, bias).unflatten(0, x.shape[:-1])


def pays(x: Tensor, w: Tensor) -> bool:
    """Whether oneDNN's product is there and faster than MKL's, by shapes and the kind of CPU."""
    if not mkl_is_narrow() or not x.is_cpu or x.dtype != torch.float32 or w.dtype != x.dtype:
        return False
    rows = x.numel() // max(1, x.shape[-1])
    return rows >= FEWEST_ROWS and rows * w.numel() >= FEWEST_PRODUCTS


@cache
def mkl_is_narrow() -> bool:
    """Whether MKL uses half of this CPU's vectors, and oneDNN's products are there instead."""
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    known = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    maker, family = cpu_family()
    halved = torch.backends.mkl.is_available() and maker == "AuthenticAMD" and family >= ZEN_5
    return wide and known and halved


def product(x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:  # [N, I], [O, I]
    """x wᵀ + bias by oneDNN, without gradients; neither has to be contiguous."""
    return torch.ops.mkldnn._linear_pointwise(x, w, bias, "none", [], "")


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, w)
        return product(x, w, bias)

    @staticmethod
    def backward(ctx: Context, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        need_x, need_w, need_b = ctx.needs_input_grad
        twice = torch.is_grad_enabled()  # the gradient is to be differentiated again
        times = F.linear if twice else product
        return (
            times(grad_y, w.t()) if need_x else None,
            times(grad_y.t(), x.t()) if need_w else None,
            grad_y.sum(0) if need_b else None,
        )
