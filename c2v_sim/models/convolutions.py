"""Lets the nn.Conv2d of any model use ops/convolution.py, where that pays."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from c2v_sim.ops.convolution import TAPS, convolution, pays

CONVOLUTIONS = ("auto", "torch")


@dataclass(frozen=True)
class Convolve:
    """What nn.Conv2d._conv_forward does, for stride 1 and zeros around the image."""

    padding: int

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        filters, channels, taps, _ = weight.shape
        if pays(x, filters, channels, taps, self.padding):
            return convolution(x, weight, bias, padding=self.padding, backend="native")
        return F.conv2d(x, weight, bias, padding=self.padding)


def take_over_convolutions(module: nn.Module) -> int:
    """Give every convolution inside that can have it the faster method; how many.

    The method is an attribute of the object: classes, names and parameters stay what they are, and
    copies of the module have it too.
    """
    taken = [m for m in module.modules() if type(m) is nn.Conv2d and _padding_of(m) is not None]
    for convolution_module in taken:
        padding = _padding_of(convolution_module)
        convolution_module._conv_forward = Convolve(padding)  # type: ignore[method-assign, assignment, arg-type]
    return len(taken)


def _padding_of(module: nn.Conv2d) -> int | None:
    """Its padding; None where ops/convolution.py cannot serve it."""
    square = module.kernel_size in [(taps, taps) for taps in TAPS]
    plain = module.stride == (1, 1) and module.dilation == (1, 1) and module.groups == 1
    if not square or not plain or module.padding_mode != "zeros":
        return None
    taps = module.kernel_size[0]
    padding = {"same": taps // 2, "valid": 0}.get(module.padding, module.padding)  # type: ignore[call-overload]
    if isinstance(padding, tuple):
        padding = padding[0] if len(set(padding)) == 1 else taps  # not the same on both sides
    return padding if padding < taps else None
