"""Recognises a network that is a chain of Linear layers and ReLU, however it is written.

    h_0 = x flattened,  h_l = h_{l-1} W_l^T + b_l, some followed by ReLU

One batch runs through the module while every call of torch is looked at: each must be a linear
layer of the module's own parameters, ReLU, a reshape to [B, …], or a dropout of nothing, and take
what the call before it gave. So nn.Sequential, a class of one's own and calls of
torch.nn.functional are all the same, and anything else (another activation, a skip connection, a
branch that looks at values) is seen. training/stacked trains such networks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from c2v_sim.models.common import logits

# Questions about a tensor that do not look at its numbers.
LOOKS = {Tensor.size, Tensor.dim, Tensor.numel, Tensor.__len__, Tensor.is_floating_point}
LOOKS |= {torch.is_floating_point, torch.numel, Tensor.is_contiguous}
LOOKS |= {getattr(Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device")}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_hooks(module: nn.Module) -> bool:
    """Whether somebody watches it, so that it has to be called as it is."""
    return any(getattr(module, hooks) for hooks in HOOKS)


class NoChain(Exception):
    """Why a module is no chain, in words that continue "it is no chain of Linear and ReLU: "."""


@dataclass(frozen=True)
class Layer:
    """Names of a Linear layer's parameters, and whether ReLU follows it."""

    weight: str
    bias: str | None
    relu: bool = False


Chain = tuple[Layer, ...]


def linear_chain(model: nn.Module, x: Tensor) -> Chain:
    """The layers of `model` (features and classifier) in their order; NoChain where it is none.

    x: a batch [B, …] that it takes.
    """
    check_parts(model)
    parameters = dict(model.named_parameters())
    watch = Watch(x, {id(p): name for name, p in parameters.items()})
    training = model.training
    try:
        with torch.enable_grad(), torch.random.fork_rng(devices=[]), watch:
            out = logits(model.train(), x)
    finally:
        model.train(training)
    if out is not watch.current or not watch.layers or watch.layers[-1].relu:
        raise NoChain("its last step is not a Linear layer")
    used = [name for layer in watch.layers for name in (layer.weight, layer.bias) if name]
    if unused := parameters.keys() - set(used):
        raise NoChain(f"{min(unused)} takes no part in its output")
    own = [parameters[name] for name in used]
    if any(g is None for g in torch.autograd.grad(out.sum(), own, allow_unused=True)):
        raise NoChain("no gradient reaches some of its layers")
    return tuple(watch.layers)


def check_parts(model: nn.Module) -> None:
    """What can be seen without running the module."""
    for name, part in model.named_modules():
        own = f"its part {name}" if name else "it"
        if next(part.parameters(recurse=False), None) is not None and type(part) is not nn.Linear:
            raise NoChain(f"{own} is a {type(part).__name__}")
        if next(part.buffers(recurse=False), None) is not None:
            raise NoChain(f"{own} has buffers")
        if has_hooks(part):
            raise NoChain(f"{own} has hooks")
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            raise NoChain(f"its parameter {name} is frozen")


class Watch(TorchFunctionMode):
    """Follows x from call to call; NoChain at the first that does not belong to a chain."""

    def __init__(self, x: Tensor, names: dict[int, str]) -> None:
        super().__init__()
        self.current, self.batch, self.inputs = x, len(x), x[0].numel()
        self.names = names  # of the parameters, by their identity
        self.layers: list[Layer] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in LOOKS:
            return func(*args, **kwargs)
        if func not in STEPS:
            raise NoChain(f"it calls {getattr(func, '__name__', func)}")
        if next(iter((*args, *kwargs.values()))) is not self.current:
            raise NoChain(f"{func.__name__} takes something else than what the step before gave")
        out = func(*args, **kwargs)
        STEPS[func](self, out, *args, **kwargs)
        self.current = out
        return out

    def linear(self, out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
        if tuple(x.shape) != (self.batch, weight.shape[1]):
            raise NoChain(f"a Linear layer takes {list(x.shape)}, not [B, {weight.shape[1]}]")
        names = [None if p is None else self.names.get(id(p), "") for p in (weight, bias)]
        if "" in names:
            raise NoChain("a Linear layer has a weight or bias that is computed")
        known = {name for layer in self.layers for name in (layer.weight, layer.bias) if name}
        if known & set(names):
            raise NoChain(f"{names[0]} is used twice")
        self.layers.append(Layer(str(names[0]), names[1]))

    def relu(self, out: Tensor, *_: object, **__: object) -> None:
        if not self.layers:
            raise NoChain("ReLU comes before the first Linear layer")
        last = self.layers[-1]
        self.layers[-1] = Layer(last.weight, last.bias, relu=True)

    def reshape(self, out: Tensor, x: Tensor, *_: object, **__: object) -> None:
        flat = out.dim() >= 2 and len(out) == self.batch
        if not flat or (self.layers and out.shape != x.shape):
            raise NoChain(f"it reshapes {list(x.shape)} to {list(out.shape)}")

    def dropout(self, out: Tensor, x: Tensor, p: float = 0.5, *_: object, **__: object) -> None:
        if p:
            raise NoChain(f"it has dropout {p:g}")


Function = Callable[..., Any]
RELU: tuple[Function, ...] = (F.relu, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_)
RESHAPE: tuple[Function, ...] = (torch.flatten, torch.reshape, Tensor.flatten, Tensor.reshape)
RESHAPE += (Tensor.view, Tensor.contiguous)
STEPS: dict[Function, Callable[..., None]] = {
    F.linear: Watch.linear,
    F.dropout: Watch.dropout,
    **dict.fromkeys(RELU, Watch.relu),
    **dict.fromkeys(RESHAPE, Watch.reshape),
}
