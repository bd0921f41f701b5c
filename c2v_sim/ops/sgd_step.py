"""sgd_step_: one optimiser step for every row of a parameter arena, in place, in one pass.

For each row k of params p, grads g, momentum_buffer b (all [K, P]):

    d = g + linear + proximal * (p - anchor)             the local objective's gradient
    d = d * min(1, max_grad_norm / (|d| + 1e-6))         torch.nn.utils.clip_grad_norm_
    d = d + weight_decay * p
    b = momentum * b + d                                 (d itself without momentum)
    p = p - lr * b

That is torch.optim.SGD (dampening 0, no Nesterov) after clip_grad_norm_ over the whole row. The
linear and proximal terms belong to the local objective, so they count in the clipped norm;
weight decay is the optimiser's and does not. FedDyn with client state h_i and global model w:
linear = a_i (h_i - w), weight_decay = 5e-5 + a_i, max_grad_norm = 10. FedProx: proximal = mu,
anchor = w.
"""

import threading

import torch
from torch import Tensor

from c2v_sim.ops._dispatch import Operator

Option = float | Tensor
_CLIP_EPSILON = 1e-6  # of torch.nn.utils.clip_grad_norm_
_constants: dict[tuple, Tensor] = {}
_making_constants = threading.Lock()


def sgd_step_(
    params: Tensor,
    grads: Tensor,
    momentum_buffer: Tensor | None = None,
    *,
    lr: Option,
    weight_decay: Option = 0.0,
    momentum: Option = 0.0,
    max_grad_norm: Option | None = None,
    linear: Tensor | None = None,
    proximal: Option = 0.0,
    anchor: Tensor | None = None,
    zero_grads: bool = False,
    options: Tensor | None = None,
    backend: str | None = None,
) -> None:  # [K, P] or [P], in place
    """Step `params` along `grads`; with `zero_grads` the same pass sets `grads` to 0 afterwards.

    `params`, `grads` and `momentum_buffer` are [K, P], or [P] for one row; rows may be views of
    a wider arena (any row stride, element stride 1) and must not overlap one another.
    `momentum_buffer` holds zeros before the first step, which makes that step torch's b = d.
    `linear` and `anchor` are of the shape of params, or [P] shared by all rows; they are only
    read. `lr`, `weight_decay`, `momentum`, `max_grad_norm` and `proximal` are numbers, or [K]
    tensors with a value for each row (float("inf") in max_grad_norm: this row is not clipped).
    `options` [K, 5] is what sgd_options made of these five: a loop with tensors among them makes it
    once, where every step would launch six small kernels for it.

    NaN or Inf in a gradient reaches the parameters (with clipping: all of the row). The bits do
    not depend on the number of threads. K = 0 or P = 0 does nothing.
    """
    p, g = _rows("params", params, params), _rows("grads", grads, params)
    b = None if momentum_buffer is None else _rows("momentum_buffer", momentum_buffer, params)
    if b is None and (isinstance(momentum, Tensor) or momentum != 0.0):
        raise ValueError("sgd_step_: momentum needs momentum_buffer (zeros before the first step)")
    if anchor is None and (isinstance(proximal, Tensor) or proximal != 0.0):
        raise ValueError("sgd_step_: proximal needs anchor, the point that it pulls towards")
    linear = None if linear is None else _rows("linear", linear, params, shared=True)
    anchor = None if anchor is None else _rows("anchor", anchor, params, shared=True)
    if options is None:
        options = sgd_options(
            p,
            lr=lr,
            weight_decay=weight_decay,
            momentum=momentum,
            proximal=proximal,
            max_grad_norm=max_grad_norm,
        )
    elif options.shape != (len(p), 5):
        raise ValueError(f"sgd_step_: options must be [{len(p)}, 5], got {tuple(options.shape)}")
    clip = max_grad_norm is not None
    with torch.no_grad():
        _operator(p, g, b, options, linear, anchor, clip, zero_grads, backend=backend)


def sgd_options(
    params: Tensor,
    *,
    lr: Option,
    weight_decay: Option = 0.0,
    momentum: Option = 0.0,
    proximal: Option = 0.0,
    max_grad_norm: Option | None = None,
) -> Tensor:  # [K, P] or [P] -> [K, 5]
    """The options of every row as sgd_step_ takes them; not to be written to."""
    limit = float("inf") if max_grad_norm is None else max_grad_norm
    rows = params.unsqueeze(0) if params.dim() == 1 else params
    return _options(rows, (lr, weight_decay, momentum, proximal, limit))


def _rows(name: str, tensor: Tensor, params: Tensor, shared: bool = False) -> Tensor:
    """`tensor` as [K, P] without a copy, checked against params."""
    shape = params.shape
    if tensor.shape != shape and not (shared and tensor.shape == shape[-1:]):
        raise ValueError(f"sgd_step_: {name} must be {tuple(shape)}, got {tuple(tensor.shape)}")
    if len(shape) not in (1, 2):
        raise ValueError(f"sgd_step_: {name} must be [K, P] or [P], got {tuple(shape)}")
    if tensor.dtype != params.dtype or tensor.device != params.device:
        raise ValueError(
            f"sgd_step_: {name} must be {params.dtype} on {params.device} as params, "
            f"got {tensor.dtype} on {tensor.device}"
        )
    if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        raise ValueError(
            f"sgd_step_: elements of a row of {name} must be adjacent (stride 1), "
            f"got stride {tensor.stride(-1)}"
        )
    if tensor.dim() == 2:
        return tensor
    return tensor.unsqueeze(0) if params.dim() == 1 else tensor.expand(shape)


def _options(params: Tensor, values: tuple[Option, ...]) -> Tensor:  # [K, 5]
    """lr, weight decay, momentum, proximal weight and norm limit of every row."""
    rows, dtype = params.shape[0], torch.promote_types(params.dtype, torch.float32)
    numbers = tuple(v for v in values if not isinstance(v, Tensor))
    if len(numbers) == len(values):
        constant = _constant_options(numbers, dtype, params.device)
        return constant if rows == 1 else constant.expand(rows, -1)
    columns = []
    for value in values:
        if not isinstance(value, Tensor):  # filled on the device: a CUDA graph can record that
            columns.append(torch.full((rows,), value, dtype=dtype, device=params.device))
            continue
        column = value.to(device=params.device, dtype=dtype)
        if column.dim() == 1 and column.shape[0] != rows:
            raise ValueError(
                f"sgd_step_: an option must be a number or [{rows}], got {tuple(column.shape)}"
            )
        columns.append(column.expand(rows))
    return torch.stack(columns, dim=1)


def _constant_options(
    values: tuple[float, ...], dtype: torch.dtype, device: torch.device
) -> Tensor:  # [1, 5]
    """Kept: a training loop steps thousands of times with the same numbers, and a new tensor
    would cost as much as a small step (on a GPU a copy from the host). One for all threads and
    never dropped: a CUDA graph may have recorded the address."""
    key = values, dtype, device
    if key not in _constants:
        with _making_constants:  # two threads that miss together must get the same tensor
            if key not in _constants:
                _constants[key] = torch.tensor([values], dtype=dtype, device=device)
    return _constants[key]


def sgd_step_torch(
    params: Tensor,
    grads: Tensor,
    momentum_buffer: Tensor | None,
    options: Tensor,
    linear: Tensor | None,
    anchor: Tensor | None,
    clip: bool,
    zero_grads: bool,
) -> None:
    """The definition."""
    columns = options.to(params.dtype).split(1, dim=1)
    lr, weight_decay, momentum, proximal, max_norm = columns  # each [K, 1]
    step = grads
    if linear is not None:
        step = step + linear
    if anchor is not None:
        step = step + proximal * (params - anchor)
    if clip:
        norm = torch.linalg.vector_norm(step, dim=1, keepdim=True)
        step = step * (max_norm / (norm + _CLIP_EPSILON)).clamp(max=1.0)
    step = step + weight_decay * params
    if momentum_buffer is not None:
        step = momentum_buffer.mul_(momentum).add_(step)
    params.sub_(lr * step)
    if zero_grads:
        grads.zero_()


_operator = Operator(
    "sgd_step",
    "(Tensor(a!) params, Tensor(b!) grads, Tensor(c!)? momentum_buffer, Tensor options, "
    "Tensor? linear, Tensor? anchor, bool clip, bool zero_grads) -> ()",
    sgd_step_torch,
    fake=lambda *args: None,
)
