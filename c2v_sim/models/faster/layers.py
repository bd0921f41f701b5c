"""Lets convolutions, norms and linear layers of any model use the operators, where that pays.

In an nn.Sequential ReLU and the pool of 2×2 after a convolution are one operator with it.
"""

from dataclasses import dataclass
from types import MethodType

import torch.nn.functional as F
from torch import Tensor, nn

from c2v_sim.models.faster.normalized import can_normalize, normalized
from c2v_sim.models.linear_chain import has_hooks
from c2v_sim.ops.layers.convolution import STRIDES, TAPS, convolution, pays
from c2v_sim.ops.layers.depthwise_convolution import depthwise_convolution, depthwise_pays
from c2v_sim.ops.layers.linear import linear, mkl_is_narrow
from c2v_sim.ops.layers.max_pool import max_pool
from c2v_sim.ops.layers.pooled_convolution import pooled_convolution, pooled_pays

CONVOLUTIONS = ("auto", "torch")


@dataclass(frozen=True)
class Convolve:
    """What nn.Conv2d._conv_forward does, for stride 1 or 2 and zeros around the image."""

    padding: int
    stride: int

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        filters, channels, taps, _ = weight.shape
        steps = {"padding": self.padding, "stride": self.stride}
        if pays(x, filters, channels, taps, **steps):
            return convolution(x, weight, bias, **steps, backend="native")
        return F.conv2d(x, weight, bias, **steps)


@dataclass(frozen=True)
class ConvolveEach:
    """The same for 3×3 of each channel by itself, zeros of one pixel and no bias."""

    stride: int

    def __call__(self, x: Tensor, weight: Tensor, bias: None) -> Tensor:
        if depthwise_pays(x, len(weight)):
            return depthwise_convolution(x, weight, stride=self.stride, backend="native")
        return F.conv2d(x, weight, None, self.stride, padding=1, groups=len(weight))


def take_over_layers(module: nn.Module) -> int:
    """Give every layer inside that can have it the faster method; how many.

    The method is an attribute of the object: classes, names and parameters stay what they are, and
    copies of the module have it too.
    """
    plain = [m for m in module.modules() if type(m) is nn.Conv2d]
    methods = {m: method for m in plain if (method := _method_for(m)) is not None}
    for convolution_module, method in methods.items():
        convolution_module._conv_forward = method  # type: ignore[method-assign, assignment]
    norms = [m for m in module.modules() if can_normalize(m)]
    for norm in norms:
        norm.forward = MethodType(normalized, norm)
    products = [m for m in module.modules() if type(m) is nn.Linear and mkl_is_narrow()]
    for layer in products:
        layer.forward = MethodType(_multiply, layer)  # type: ignore[method-assign]
    for sequence in [m for m in module.modules() if type(m) is nn.Sequential]:
        if any(_are_pooled(list(sequence)[i : i + 3]) for i in range(len(sequence))):
            sequence.forward = MethodType(_in_sequence, sequence)  # type: ignore[method-assign]
    return len(methods) + len(norms) + len(products)


def convolve_and_pool(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """max_pool(layer(x), relu=True), in one pass where the layer is taken over and that pays."""
    return _at_once(layer, x) if pools_at_once(layer, x) else max_pool(layer(x), relu=True)


def _at_once(layer: nn.Conv2d, x: Tensor) -> Tensor:
    padding = layer._conv_forward.padding  # type: ignore[attr-defined]
    return pooled_convolution(x, layer.weight, layer.bias, padding=padding, backend="native")


def pools_at_once(layer: nn.Module, x: Tensor) -> bool:
    """Whether one operator takes the place of layer, ReLU and pool; nobody watches the layer."""
    method = vars(layer).get("_conv_forward")
    if not isinstance(layer, nn.Conv2d) or not isinstance(method, Convolve) or has_hooks(layer):
        return False
    filters, channels, taps, _ = layer.weight.shape
    return pooled_pays(x, filters, channels, taps, method.padding, method.stride)


def _in_sequence(sequence: nn.Sequential, x: Tensor) -> Tensor:
    """What nn.Sequential.forward does, with ReLU and pool at once with their convolution."""
    parts = list(sequence)
    while parts:
        if _are_pooled(parts[:3]) and pools_at_once(parts[0], x):
            x = _at_once(parts[0], x)  # type: ignore[arg-type]
            del parts[:3]
        else:
            x = parts.pop(0)(x)
    return x


def _are_pooled(parts: list[nn.Module]) -> bool:
    """Whether these are a convolution, ReLU and a pool of 2×2, the last two without hooks."""
    if [type(part) for part in parts] != [nn.Conv2d, nn.ReLU, nn.MaxPool2d]:
        return False
    pool = parts[2]
    names = ("kernel_size", "stride", "padding", "dilation")
    sizes = [nn.modules.utils._pair(getattr(pool, name)) for name in names]
    plain = sizes == [(2, 2), (2, 2), (0, 0), (1, 1)] and not any(map(has_hooks, parts[1:]))
    return plain and not pool.return_indices and not pool.ceil_mode


def _multiply(layer: nn.Linear, x: Tensor) -> Tensor:
    """What nn.Linear.forward does."""
    return linear(x, layer.weight, layer.bias)


def _method_for(module: nn.Conv2d) -> Convolve | ConvolveEach | None:
    """What takes the place of its _conv_forward; None where no operator can serve it."""
    if module.dilation != (1, 1) or module.padding_mode != "zeros":
        return None
    if module.groups == 1:
        padding = _padding_of(module)
        return None if padding is None else Convolve(padding, module.stride[0])
    one_each = module.groups == module.in_channels == module.out_channels
    fits = module.kernel_size == (3, 3) and module.padding in ((1, 1), "same")
    known = module.stride in [(stride, stride) for stride in STRIDES]
    if one_each and fits and known and module.bias is None:
        return ConvolveEach(module.stride[0])
    return None


def _padding_of(module: nn.Conv2d) -> int | None:
    """Its padding; None where ops/layers/convolution.py cannot serve it."""
    square = module.kernel_size in [(taps, taps) for taps in TAPS]
    if not square or module.stride not in [(stride, stride) for stride in STRIDES]:
        return None
    taps, padding = module.kernel_size[0], module.padding
    if isinstance(padding, str):
        return {"same": taps // 2, "valid": 0}[padding]
    return padding[0] if len(set(padding)) == 1 and padding[0] < taps else None
