"""Any network for k clients at once, as it is written: its calls of torch are answered otherwise.

One forward pass has the samples of all clients, [k·B, …]. What has no parameters (ReLU, pools,
reshapes, sums) treats samples one by one and is left as it is; a layer with parameters is answered
by training/stacked/operations.py with those of every client. Anything else is refused: CannotStack
says what, and the clients train on lanes.
"""

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from c2v_sim.models.common import logits
from c2v_sim.models.linear_chain import LOOKS, RELU, RESHAPE, has_hooks
from c2v_sim.ops.layers.max_pool import max_pool
from c2v_sim.training.arena import Arena, BoundModule, Layout, Slot, copy_of, layout_of
from c2v_sim.training.stacked import operations

Function = Callable[..., Any]
MORE_LOOKS = {getattr(Tensor, name).__get__ for name in ("is_cuda", "requires_grad", "is_cpu")}
# ops/layers/max_pool.py makes an empty one.
MORE_LOOKS |= {Tensor.stride, Tensor.storage_offset, Tensor.new_empty}
BY_SAMPLE: set[Function] = {
    *RELU, *RESHAPE, F.relu6, F.hardtanh, F.leaky_relu, F.elu, F.gelu, F.silu, F.softplus,
    torch.tanh, torch.sigmoid, Tensor.tanh, Tensor.sigmoid, torch.add, torch.mul, Tensor.add,
    Tensor.mul, Tensor.__add__, Tensor.__radd__, Tensor.__mul__, Tensor.__rmul__, Tensor.__iadd__,
    Tensor.add_, Tensor.mul_, operator.add, F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d,
    F.adaptive_max_pool2d, Tensor.mean, torch.mean, Tensor.permute, Tensor.unsqueeze, F.pad,
}  # fmt: skip


class CannotStack(Exception):
    """Why, in words that continue "clients cannot be stacked: "."""


class Clients(TorchFunctionMode):
    """Inside, a module runs for k clients: `tensors` are theirs [k, …], by the module's own."""

    def __init__(self, tensors: Mapping[int, Tensor], real: Tensor) -> None:
        """tensors: by the identity of a parameter or buffer; real [k, B]: 1, or 0 in padding."""
        super().__init__()
        self.tensors, self.real = tensors, real
        self.samples = real.numel()
        self.products = self.patches = 0.0  # multiplications, and numbers in the largest patches

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in LOOKS or func in MORE_LOOKS:
            return func(*args, **kwargs)
        if answer := ANSWERS.get(func) or OF_OPERATORS.get(str(func)):
            return answer(self, *args, **kwargs)
        name = getattr(func, "__name__", str(func))
        if any(id(value) in self.tensors for value in (*args, *kwargs.values())):
            if func is Tensor.contiguous:
                return args[0]
            if func is Tensor.add_ and args[0].dtype == torch.int64:
                return args[0]  # batches that a batch norm has seen: counted by blocks.py
            raise CannotStack(f"{name} takes a parameter")
        if func not in BY_SAMPLE:
            raise CannotStack(f"it calls {name}")
        return self.by_sample(func, *args, **kwargs)

    def by_sample(self, func: Function, *args: Any, **kwargs: Any) -> Any:
        out = func(*args, **kwargs)
        first = out[0] if isinstance(out, tuple) else out
        if len(first) != self.samples:
            raise CannotStack(f"{getattr(func, '__name__', func)} joins samples")
        return out

    def own(self, tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else self.tensors.get(id(tensor))

    def trained(self, name: str, weight: Tensor, bias: Tensor | None) -> Tensor | None:
        """The clients' weights, None where this layer is frozen and so the same for all."""
        own = self.own(weight)
        if bias is not None and (own is None) != (self.own(bias) is None):
            raise CannotStack(f"a {name} has one of weight and bias frozen or computed")
        if own is None and weight.requires_grad:
            raise CannotStack(f"a {name} has a weight that is computed")
        return own

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        own = self.trained("Linear layer", weight, bias)
        if own is None:
            return F.linear(x, weight, bias)
        self.products += x.numel() * len(weight)
        return operations.linear(x, own, self.own(bias))

    def convolution(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        own = self.trained("convolution", weight, bias)
        if own is None:
            return F.conv2d(x, weight, bias, stride, padding, dilation, groups)
        if groups != 1 or pair(dilation) != (1, 1) or isinstance(padding, str):
            raise CannotStack("a convolution has groups, dilation or padding by name")
        out = operations.convolution(x, own, self.own(bias), pair(stride), pair(padding))
        self.products += out.numel() * weight[0].numel()
        self.patches = max(self.patches, out.numel() / out.shape[1] * weight[0].numel())
        return out

    def native_convolution(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, stride: int
    ) -> Tensor:
        return self.convolution(x, weight, bias, stride, padding)

    def native_pooled_convolution(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, padding: int
    ) -> tuple[Tensor, Tensor]:
        y = max_pool(self.convolution(x, weight, bias, 1, padding), relu=True)
        return y, y.new_empty(0, dtype=torch.uint8)

    def native_depthwise_convolution(self, x: Tensor, weight: Tensor, stride: int) -> Tensor:
        return self.convolution(x, weight, None, stride, 1, groups=len(weight))

    def group_norm(
        self,
        x: Tensor,
        groups: int,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        if weight is None or self.trained("group norm", weight, bias) is None:
            return F.group_norm(x, groups, weight, bias, eps)
        return operations.group_norm(x, groups, self.own(weight), self.own(bias), eps)

    def batch_norm(
        self,
        x: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if not training:
            raise CannotStack("a batch norm does not train")
        if x.dim() < 3 or x[0, 0].numel() == 1:
            raise CannotStack("a batch norm sees one number of each sample: one is too few")
        if weight is not None and self.trained("batch norm", weight, bias) is None:
            raise CannotStack("a batch norm is frozen")
        mean, variance = self.own(running_mean), self.own(running_var)
        running = None if mean is None or variance is None else (mean, variance)
        own = self.own(weight), self.own(bias)
        return operations.batch_norm(x, running, *own, momentum, eps, self.real)

    def dropout(
        self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if p and training:
            raise CannotStack(f"it has dropout {p:g}")
        return x


def pair(value: Any) -> tuple[int, int]:
    first, second = (value, value) if isinstance(value, int) else value
    return first, second


ANSWERS: dict[Function, Callable[..., Tensor]] = {
    F.linear: Clients.linear,
    F.conv2d: Clients.convolution,
    F.group_norm: Clients.group_norm,
    F.batch_norm: Clients.batch_norm,
    F.dropout: Clients.dropout,
}
OF_OPERATORS: dict[str, Callable[..., Any]] = {  # which a machine may lack
    "c2v_sim.convolution": Clients.native_convolution,
    "c2v_sim.depthwise_convolution": Clients.native_depthwise_convolution,
    "c2v_sim.pooled_convolution": Clients.native_pooled_convolution,
    "c2v_sim.max_pool": lambda clients, x, relu: clients.by_sample(
        torch.ops.c2v_sim.max_pool, x, relu
    ),
}


def rows_as(slot: Slot, rows: Tensor) -> Tensor:  # [k, size] -> [k, *slot.shape]
    """A model's tensor in every row, as a view."""
    flat = rows[:, slot.offset : slot.end]
    if not slot.channels_last:
        return flat.view(len(rows), *slot.shape)
    out, inner, height, width = slot.shape
    return flat.view(len(rows), out, height, width, inner).permute(0, 1, 4, 2, 3)


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_parameters()) | dict(module.named_buffers())


def stacked_logits(
    module: nn.Module, layout: Layout, rows: Tensor, x: Tensor, real: Tensor
) -> tuple[Tensor, list[Tensor], Clients]:
    """Logits [k·B, classes] of the models in `rows` [k, size], and the parameters [k, …] that they
    can be differentiated by, in the order of the layout."""
    named = named_tensors(module)
    # .data: batch norms write there, and autograd must not take that for a change of parameters.
    tensors = {id(named[slot.name]): rows_as(slot, rows.data) for slot in layout.buffers}
    tensors |= {id(named[name]): rows.new_zeros(0) for name in layout.integers}
    leaves = [rows_as(slot, rows).detach().requires_grad_() for slot in layout.parameters]
    tensors |= {id(named[s.name]): p for s, p in zip(layout.parameters, leaves, strict=True)}
    clients = Clients(tensors, real)
    with clients:
        return logits(module, x), leaves, clients


def work_of(model: nn.Module, x: Tensor) -> tuple[float, float]:
    """Multiplications and numbers in the largest patches, of one sample; CannotStack if need be.

    That stacking is right is proven by two different models on different samples. x: [B, …].
    """
    for name, part in model.named_modules():
        if has_hooks(part):
            raise CannotStack(f"its part {name} has hooks")
    layout = layout_of(model)
    if any(not name.endswith("num_batches_tracked") for name in layout.integers):
        raise CannotStack("it counts something else than the batches of batch norms")
    draw = torch.Generator().manual_seed(0)
    arena = Arena(layout, 2)
    for row in range(2):
        arena.read(model, row)
    arena.data[1] *= 1 + 0.1 * torch.rand(arena.data[1].shape, generator=draw)
    if not x.is_floating_point():
        raise CannotStack("its inputs are symbols")
    samples = torch.cat([x, x]) + torch.randn(2 * len(x), *x.shape[1:], generator=draw)
    if x.dim() == 4:
        samples = samples.contiguous(memory_format=torch.channels_last)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        bound = BoundModule(copy_of(model, layout).train(), layout, "cpu", trains=False)
        expected = []
        for row, part in enumerate(samples.chunk(2)):
            start = arena.data[row].clone(), arena.integers[row].clone()
            bound.bind(*start)
            expected.append(logits(bound.module, part))
        try:
            real = torch.ones(2, len(x))
            got, _, seen = stacked_logits(bound.module, layout, arena.data, samples, real)
        except CannotStack:
            raise
        except Exception as error:  # whatever a user's module may raise
            raise CannotStack(f"{type(error).__name__}: {error}") from error
    truth = torch.cat(expected)
    if not torch.allclose(got, truth, rtol=1e-3, atol=1e-4 * float(truth.abs().max())):
        raise CannotStack("its logits come out otherwise")
    return seen.products / len(samples), seen.patches / len(samples)
