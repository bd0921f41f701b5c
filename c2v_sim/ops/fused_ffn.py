"""fused_ffn: DSA-IGN's feed-forward layer, without the hidden activations in memory.

    y = W2 drop(relu(W1 x + b1)) + b2        x [..., C] -> y [..., C], F hidden units

Weights have the layout of torch.nn.Linear: w1 [F, C], b1 [F], w2 [C, F], b2 [C]. Backward makes
the hidden values again, so that only the inputs are kept between the passes.

Clients. Weights with one dimension more, [k, F, C] and so on, are those of k clients, and x
[k, ..., C] has tokens of each, as many for all: y[i] is what client i's weights make of x[i].

Dropout. Whether unit f of token t (its row in the flattened x) is kept is a function of (seed, t,
f) alone, the same in every backend, a client having a seed and tokens of its own: 16 bits of an
integer hash are compared with round(65536 p). The probability is thus a multiple of 1/65536
(p = 0.1 becomes 0.100006), and kept units are divided by the probability that this leaves, so that
the expectation is exact.
"""

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from c2v_sim.ops._dispatch import Operator
from c2v_sim.ops._loss import Context

_BITS32 = 0xFFFFFFFF


def fused_ffn(
    x: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    b2: Tensor,
    *,
    dropout: float = 0.0,
    seed: int | Tensor = 0,
    backend: str | None = None,
) -> Tensor:  # [..., C] -> [..., C]
    """W2 drop(relu(W1 x + b1)) + b2, differentiable in all five tensors.

    `seed` (an int, or an int64 tensor of one element on x's device, which costs no transfer; of k
    clients an int64 tensor [k]) chooses the dropped units: give every call its own. NaN and
    infinity propagate as in torch, except that a dropped unit contributes zero whatever it holds.
    relu has gradient 0 at 0.
    """
    _check_shapes(x, w1, b1, w2, b2)
    if not 0.0 <= dropout <= 1.0:
        raise ValueError(f"fused_ffn: dropout must be in [0, 1], got {dropout}")
    clients = w1.shape[:-2]  # [] or [k]
    if not isinstance(seed, Tensor):
        seed = torch.full(clients, seed, dtype=torch.int64, device=x.device)
    elif seed.dtype != torch.int64 or seed.numel() != clients.numel() or seed.device != x.device:
        many = f"{clients.numel()} elements" if clients else "one element"
        raise ValueError(
            f"fused_ffn: a seed tensor must be int64, of {many}, on {x.device}; "
            f"got {seed.dtype}, {tuple(seed.shape)}, on {seed.device}"
        )
    if backend is None and x.is_cuda and x.shape[-1] > 64:
        backend = "torch"  # the Triton kernels hold all channels in registers
    rows = x.reshape(*clients, x[..., 0].numel() // max(1, clients.numel()), x.shape[-1])
    seeds = seed.reshape(clients)
    y = _operator(rows, w1, b1, w2, b2, seeds, float(dropout), backend=backend)
    return y.reshape(x.shape)


def _check_shapes(x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor) -> None:
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(f"fused_ffn: x must be [..., C] with C > 0, got {tuple(x.shape)}")
    channels = x.shape[-1]
    if w1.dim() not in (2, 3) or w1.shape[-1] != channels or w1.shape[-2] == 0:
        raise ValueError(
            f"fused_ffn: w1 must be [F, {channels}] or, of k clients, [k, F, {channels}], F > 0, "
            f"got {tuple(w1.shape)}"
        )
    units, clients = w1.shape[-2], w1.shape[:-2]
    if clients and (x.dim() < 3 or x.shape[0] != clients[0]):
        raise ValueError(
            f"fused_ffn: x must be [{clients[0]}, ..., {channels}] for w1 {list(w1.shape)}, "
            f"got {tuple(x.shape)}"
        )
    shapes = {"b1": (b1, (units,)), "w2": (w2, (channels, units)), "b2": (b2, (channels,))}
    expected = {name: (tensor, (*clients, *shape)) for name, (tensor, shape) in shapes.items()}
    for name, (tensor, shape) in expected.items():
        if tensor.shape != shape:
            raise ValueError(
                f"fused_ffn: {name} must be {list(shape)} for w1 {list(w1.shape)}, "
                f"got {tuple(tensor.shape)}"
            )
    for name, tensor in {"w1": w1, "b1": b1, "w2": w2, "b2": b2}.items():
        if tensor.dtype != x.dtype or tensor.device != x.device:
            raise ValueError(
                f"fused_ffn: {name} must be {x.dtype} on {x.device} like x, "
                f"got {tensor.dtype} on {tensor.device}"
            )


def fused_ffn_torch(
    x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, seed: Tensor, dropout: float
) -> Tensor:  # [T, C] -> [T, C], or of clients [k, T, C] -> [k, T, C]
    """The definition."""
    hidden = F.relu(_linear(x, w1, b1))
    if dropout > 0.0:
        threshold, scale = dropout_threshold(dropout)
        keep = keep_mask(x.shape[-2], w1.shape[-2], threshold, seed)
        hidden = torch.where(keep, hidden * scale, 0.0)
    return _linear(hidden, w2, b2)


def _linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if weight.dim() == 2:
        return F.linear(x, weight, bias)
    return torch.baddbmm(bias.unsqueeze(1), x, weight.mT)


def dropout_threshold(dropout: float) -> tuple[int, float]:
    """How many of 65536 values drop a unit, and the factor for those kept (0 if none is)."""
    threshold = int(dropout * 65536.0 + 0.5)
    return threshold, 65536.0 / (65536 - threshold) if threshold < 65536 else 0.0


def keep_mask(
    tokens: int, units: int, threshold: int, seed: Tensor, first_token: int = 0
) -> Tensor:
    """Which hidden units are kept: bool [tokens, units], or [k, tokens, units] for k seeds; the
    definition of the dropout bits.

    A 64-bit hash of seed and token gives the token two 32-bit keys. One 32-bit hash of these and
    a column number serves two units that lie 8 apart: 16 bits each.
    """
    token = first_token + torch.arange(tokens, device=seed.device)
    key = _mix64(_mix64(seed)[..., None] + token)[..., None]
    first, second = key & _BITS32, (key >> 32) & _BITS32
    unit = torch.arange(units, device=seed.device)
    column = (unit // 16 * 8 + unit % 8) * 0x9E3779B1
    v = (first + column) & _BITS32
    v = ((v ^ (v >> 16)) * 0x7FEB352D) & _BITS32
    v = ((v ^ (v >> 15) ^ second) * 0x846CA68B) & _BITS32
    v = v ^ (v >> 16)
    return ((v >> (unit // 8 % 2 * 16)) & 0xFFFF) >= threshold


def _mix64(z: Tensor) -> Tensor:
    """The SplitMix64 step in int64, whose products wrap; constants are two's complements."""

    def shift(value: Tensor, bits: int) -> Tensor:  # without copies of the sign
        return (value >> bits) & ((1 << (64 - bits)) - 1)

    z = z + (0x9E3779B97F4A7C15 - 2**64)
    z = (z ^ shift(z, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    z = (z ^ shift(z, 27)) * (0x94D049BB133111EB - 2**64)
    return z ^ shift(z, 31)


def fused_ffn_backward_torch(
    grad_y: Tensor,
    x: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    seed: Tensor,
    dropout: float,
    need_x: bool,
    need_w: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients that the fused backends compute, for x, w1, b1, w2, b2."""
    threshold, scale = dropout_threshold(dropout)
    hidden, clients = _linear(x, w1, b1), w1.shape[:-2]
    active = ~(hidden <= 0) & keep_mask(x.shape[-2], w1.shape[-2], threshold, seed)
    hidden = torch.where(active, hidden * scale, 0.0)
    grad_hidden = torch.where(active, (grad_y @ w2) * scale, 0.0)
    grad_x = grad_hidden @ w1 if need_x else x.new_empty(*clients, 0, x.shape[-1])
    grad_w1 = grad_hidden.mT @ x if need_w else w1.new_empty(*clients, 0, w1.shape[-1])
    grad_w2 = grad_y.mT @ hidden if need_w else w2.new_empty(*clients, w2.shape[-2], 0)
    return grad_x, grad_w1, grad_hidden.sum(-2), grad_w2, grad_y.sum(-2)


def _fake_backward(
    grad_y: Tensor,
    x: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    seed: Tensor,
    dropout: float,
    need_x: bool,
    need_w: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    (tokens, channels), units, clients = x.shape[-2:], w1.shape[-2], w1.shape[:-2]
    sizes = [(tokens if need_x else 0, channels), (units if need_w else 0, channels), (units,)]
    sizes += [(channels, units if need_w else 0), (channels,)]
    dx, dw1, db1, dw2, db2 = (x.new_empty(*clients, *size) for size in sizes)
    return dx, dw1, db1, dw2, db2


def _setup_context(ctx: Context, inputs: tuple, output: Tensor) -> None:
    x, w1, b1, w2, _, seed, ctx.dropout = inputs
    ctx.save_for_backward(x, w1, b1, w2, seed)


def _backward(namespace: str, ctx: Context, grad_y: Tensor) -> tuple[Tensor | None, ...]:
    needed = ctx.needs_input_grad[:5]
    operator = getattr(torch.ops, namespace).fused_ffn_backward
    grads = operator(
        grad_y, *ctx.saved_tensors, ctx.dropout, needed[0], any(needed[i] for i in (1, 3))
    )
    return *(g if n else None for g, n in zip(grads, needed, strict=True)), None, None


def _no_double_backward(ctx: Context, *grads: Tensor) -> None:
    raise RuntimeError(
        "fused_ffn: the fused backends have no second derivative; use backend='torch'"
    )


_SCHEMA = "Tensor x, Tensor w1, Tensor b1, Tensor w2"
_operator = Operator(
    "fused_ffn",
    f"({_SCHEMA}, Tensor b2, Tensor seed, float dropout) -> Tensor",
    fused_ffn_torch,
    fake=lambda x, w1, b1, w2, b2, seed, dropout: x.new_empty(x.shape),
)
_backward_operator = Operator(
    "fused_ffn_backward",
    f"(Tensor grad_y, {_SCHEMA}, Tensor seed, float dropout, bool need_x, bool need_w)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    fused_ffn_backward_torch,
    fake=_fake_backward,
    setup_context=lambda ctx, inputs, output: None,
    backward=_no_double_backward,
)
# Registered here and not by Operator: backward has to run where forward ran.
for _namespace in ("c2v_sim", "c2v_sim_triton"):
    if hasattr(getattr(torch.ops, _namespace), "fused_ffn"):
        torch.library.register_autograd(
            f"{_namespace}::fused_ffn",
            functools.partial(_backward, _namespace),
            setup_context=_setup_context,
        )
