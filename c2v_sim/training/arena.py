"""Stage 7a: the parameter arena. Many models as rows of one float32 buffer.

A row holds a model's parameters, then its floating buffers (batch-norm statistics), flat:
[rows, size]. A module is *bound* to a row: its parameters and buffers become views into it, so
training writes the arena directly, one fused pass updates a whole model, and aggregation is one
weighted sum over rows. Counts (num_batches_tracked) live in a small table beside it. What does not
change has no place in a row: frozen parameters, which all copies of a module share, buffers that a
state dict leaves out, and tables of integers.

Every tensor begins at a multiple of 16 bytes, and the parameters as well as the whole row end at a
multiple of 128, so that a GPU reads and writes four numbers at once. What lies between is zero:
its gradient is zero, and all that is done with rows leaves zeros zero.
"""

import copy
import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

SLOT = 4  # numbers: the places of tensors are multiples of it, 16 bytes
ROW = 32  # the same for the lengths of rows, 128 bytes
LARGE = 8 << 20  # bytes of rows that get memory of their own


def padded(count: int, to: int) -> int:
    return -(-count // to) * to


@dataclass(frozen=True)
class Slot:
    """Where one tensor of the model lies in a row."""

    name: str
    offset: int
    shape: torch.Size
    channels_last: bool  # stored as [O, H, W, I], so that the view is channels_last

    @property
    def end(self) -> int:
        return self.offset + self.shape.numel()

    def view(self, row: Tensor) -> Tensor:
        flat = row[self.offset : self.end]
        if not self.channels_last:
            return flat.view(self.shape)
        out, inner, height, width = self.shape
        return flat.view(out, height, width, inner).permute(0, 3, 1, 2)

    def flat(self, tensor: Tensor) -> Tensor:  # [shape] -> [end - offset]
        """The numbers of `tensor` in the order of a row, without a copy where they lie so."""
        return (tensor.permute(0, 2, 3, 1) if self.channels_last else tensor).reshape(-1)


@dataclass(frozen=True)
class Layout:
    """The order of a model's tensors in a row: `parameters` first, then floating `buffers`."""

    parameters: tuple[Slot, ...]
    buffers: tuple[Slot, ...]
    integers: tuple[str, ...]

    @property
    def trainable(self) -> int:
        """Length of the part of a row that the optimiser updates, with its padding."""
        return padded(self.parameters[-1].end, ROW)

    @property
    def size(self) -> int:
        """Length of a row, with its padding."""
        return padded(self.buffers[-1].end, ROW) if self.buffers else self.trainable

    @property
    def parameter_count(self) -> int:
        """How many numbers are trained."""
        return sum(slot.shape.numel() for slot in self.parameters)

    @property
    def buffer_count(self) -> int:
        return sum(slot.shape.numel() for slot in self.buffers)

    def spread(self, rows: Tensor, width: int) -> Tensor:  # [..., n] -> [..., width]
        """Rows without padding, as older checkpoints have them, at their places in rows of
        `width`, which is `trainable` or `size`. Rows that are neither are returned as they are."""
        slots = {self.trainable: self.parameters, self.size: self.parameters + self.buffers}
        parts = slots.get(width, ())
        lengths = [slot.shape.numel() for slot in parts]
        if rows.shape[-1] == width or rows.shape[-1] != sum(lengths):
            return rows
        out = rows.new_zeros(*rows.shape[:-1], width)
        for slot, part in zip(parts, rows.split(lengths, dim=-1), strict=True):
            out[..., slot.offset : slot.end] = part
        return out


def layout_of(module: nn.Module) -> Layout:
    """The layout of `module`; what trains must be float32."""
    offset = 0
    plain = any(getattr(part, "contiguous", False) for part in module.modules())

    def take(name: str, tensor: Tensor) -> Slot:
        nonlocal offset
        slot = Slot(name, offset, tensor.shape, channels_last=tensor.dim() == 4 and not plain)
        offset = padded(slot.end, SLOT)
        return slot

    parameters = []
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.dtype != torch.float32:
            raise ValueError(
                f"arena: parameter {name} must be float32 to be trained, got {parameter.dtype}; "
                "give model.float(), or freeze it with requires_grad_(False)"
            )
        parameters.append(take(name, parameter))
    if not parameters:
        raise ValueError("arena: the model has no parameters to train")
    offset = padded(offset, ROW)
    buffers, integers, left_out = [], [], left_out_of_state(module)
    for name, buffer in module.named_buffers():
        if buffer.is_floating_point() and name not in left_out:
            buffers.append(take(name, buffer))
        elif buffer.dtype == torch.int64 and buffer.dim() == 0:
            integers.append(name)
    return Layout(tuple(parameters), tuple(buffers), tuple(integers))


def left_out_of_state(module: nn.Module) -> set[str]:
    """The names of buffers that are in no state dict: what a module can make again."""
    return {
        f"{name}.{buffer}" if name else buffer
        for name, part in module.named_modules()
        for buffer in part._non_persistent_buffers_set
    }


def copy_of(module: nn.Module, layout: Layout) -> nn.Module:
    """A copy of `module` for a BoundModule: it shares its frozen parameters, those that `layout`
    leaves out, and until it is bound also the numbers of the others."""
    trained = {slot.name for slot in layout.parameters}

    def shared(name: str, p: nn.Parameter) -> nn.Parameter:
        return nn.Parameter(p.data, p.requires_grad) if name in trained else p

    return copy.deepcopy(module, {id(p): shared(n, p) for n, p in module.named_parameters()})


def zero_rows(rows: int, size: int, device: torch.device) -> Tensor:  # [rows, size]
    """Zeros; where they are many, in memory of their own on the CPU: it is taken when it is first
    written to, goes back at once, and leaves no hole among the tensors of training steps."""
    if device.type != "cpu" or 4 * rows * size < LARGE:
        return torch.zeros(rows, size, device=device)
    own = mmap.mmap(-1, 4 * rows * size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(own, dtype=torch.float32).view(rows, size)


class Arena:
    """`rows` models of one layout: `data` [rows, size] float32 and `integers` [rows, n] int64.

    Where ranks share a cohort, `ranks` may say on which of them each row of `data` is; None: here.
    """

    def __init__(self, layout: Layout, rows: int, device: torch.device | str = "cpu") -> None:
        self.layout = layout
        self.ranks: Sequence[int] | None = None
        self.data = zero_rows(rows, layout.size, torch.device(device))
        self.integers = torch.zeros(rows, len(layout.integers), dtype=torch.int64, device=device)

    def read(self, module: nn.Module, row: int) -> None:
        """Copy the module's tensors into `row`."""
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        with torch.no_grad():
            for slot in self.layout.parameters + self.layout.buffers:
                slot.view(self.data[row]).copy_(tensors[slot.name])
            for column, name in enumerate(self.layout.integers):
                self.integers[row, column] = tensors[name]

    def grow(self, rows: int) -> None:
        """From now on `rows` models; each new one is a copy of the first."""
        new = rows - len(self.data)
        if new > 0:
            self.data = torch.cat([self.data, self.data[:1].expand(new, -1)])
            self.integers = torch.cat([self.integers, self.integers[:1].expand(new, -1)])

    def part(self, rows: slice | Tensor) -> "Arena":
        """Some of the rows: a view of a slice, a copy of what an index names."""
        out = copy.copy(self)
        out.data, out.integers = self.data[rows], self.integers[rows]
        return out

    def state_dict(self, row: int) -> dict[str, Tensor]:
        """The row as named, contiguous CPU tensors: what a file or a user's module takes."""
        slots = self.layout.parameters + self.layout.buffers
        state = {s.name: s.view(self.data[row]).contiguous().cpu().clone() for s in slots}
        integers = zip(self.layout.integers, self.integers[row].cpu(), strict=True)
        return state | {name: value.clone() for name, value in integers}


class BoundModule:
    """A module whose tensors are views into an arena row, and whose gradients are one flat row.

    Binding again to another row costs microseconds, so a lane keeps one module for its life.
    """

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        device: torch.device | str,
        *,
        trains: bool = True,
    ) -> None:
        self.module = module.to(device)
        self.layout = layout
        self._device = device
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        self._floats = [(tensors[s.name], s) for s in layout.parameters + layout.buffers]
        self._integers = [tensors[name] for name in layout.integers]
        for slot in layout.parameters:
            tensors[slot.name].grad = None
        self._trained = [(tensors[s.name], s) for s in layout.parameters] if trains else []
        self._gradients: Tensor | None = None

    @property
    def gradients(self) -> Tensor:  # [trainable]
        """The row into which autograd adds gradients; made when it is first asked for."""
        if self._gradients is None:
            length = self.layout.trainable if self._trained else 0
            self._gradients = zero_rows(1, length, torch.device(self._device))[0]
            self._attach(self._gradients)
        return self._gradients

    def _attach(self, row: Tensor) -> None:
        for parameter, slot in self._trained:
            place = slot.view(row)
            if parameter.grad is not None:
                place.copy_(parameter.grad)
            parameter.grad = place

    def clear_gradients(self) -> None:
        if self._gradients is not None:
            self._gradients.zero_()
            return
        for parameter, _ in self._trained:
            parameter.grad = None

    @contextmanager
    def gradients_to(self, take: Callable[[Slot, Tensor], None]) -> Iterator[None]:
        """Inside, a gradient goes to `take` when it is there, and is dropped; no row is needed.

        What still reads the parameter in the backward pass then raises an error: it may have been
        changed by `take`.
        """

        def hook_of(slot: Slot) -> Callable[[Tensor], None]:
            def hook(parameter: Tensor) -> None:
                if parameter.grad is not None:
                    take(slot, parameter.grad)
                    torch.autograd.graph.increment_version(parameter)
                parameter.grad = None

            return hook

        hooks = []
        for parameter, slot in self._trained:
            parameter.grad = None
            hooks.append(parameter.register_post_accumulate_grad_hook(hook_of(slot)))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            if self._gradients is not None:
                self._attach(self._gradients)

    def bind(self, data: Tensor, integers: Tensor) -> Tensor:  # [size], [n] -> [trainable]
        """Point every tensor at a row of an arena; returns the row's trainable part."""
        for tensor, slot in self._floats:
            tensor.data = slot.view(data)
        for column, tensor in enumerate(self._integers):
            tensor.data = integers[column]
        return data[: self.layout.trainable]
