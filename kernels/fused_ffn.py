"""fused_ffn: y = W2 drop(relu(W1 x + b1)) + b2 and its gradients, hidden values in registers only.

Forward and grad_x: one program per block of tokens, which walks over the hidden units. Weight
gradients: one program per panel of units and slice of tokens; slices (their number depends on the
token count alone) are summed in order, so there are no atomics and the bits repeat. The channels
are one block, padded to a power of two. The dropout bits are those of c2v_sim/ops/fused_ffn.py.
The last axis of a grid is the client: weights, tokens and seed of its own.
"""

import contextlib

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_CHANNELS = 64  # beyond it the block of all channels no longer fits the registers
UNITS = 32
# (most tokens of a block at up to 32 channels, warps): the largest that spill no registers.
FORWARD, GRAD_X, GRAD_WEIGHTS = (64, 4), (32, 4), (32, 8)
FEWEST_TOKENS = 16  # that tl.dot takes
PROGRAMS = (
    216  # a grid has so many where the tokens suffice: two for each multiprocessor of an A100
)
SLICE_TOKENS, MAX_SLICES = 512, 16


@triton.jit
def _mix64(z):
    z += 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def _keep(seed, token, unit, threshold):
    """Which units are kept: bool [tokens, units] for token int64 [tokens], unit [units]."""
    key = _mix64(_mix64(tl.load(seed).to(tl.uint64)) + token.to(tl.uint64))
    first, second = key.to(tl.uint32), (key >> 32).to(tl.uint32)
    unit = unit.to(tl.uint32)
    column = (unit // 16 * 8 + unit % 8) * 0x9E3779B1
    v = first[:, None] + column[None, :]
    v = (v ^ (v >> 16)) * 0x7FEB352D
    v = (v ^ (v >> 15) ^ second[:, None]) * 0x846CA68B
    v = v ^ (v >> 16)
    half = (unit // 8 % 2 * 16)[None, :]
    return ((v >> half) & 0xFFFF).to(tl.int32) >= threshold


@triton.jit
def _activate(h, b1, seed, token, unit, tokens, units, threshold, DROP: tl.constexpr):
    """(relu'd and dropped hidden values before scaling, which of them are active)."""
    bias = tl.load(b1 + unit, mask=unit < units, other=0.0)
    h += bias[None, :]
    # Not `h > 0`: a NaN stays, as in torch.
    active = ((h <= 0) == 0) & (token < tokens)[:, None] & (unit < units)[None, :]
    if DROP:
        active = active & _keep(seed, token, unit, threshold)
    return tl.where(active, h, 0.0), active


@triton.jit
def _rows(pointer, token, channel, tokens, channels):
    """Rows of a [tokens, channels] matrix, zero outside."""
    inside = (token < tokens)[:, None] & (channel < channels)[None, :]
    return tl.load(pointer + token[:, None] * channels + channel[None, :], mask=inside, other=0.0)


@triton.jit
def _columns(pointer, channel, unit, channels, units):
    """Columns of a [channels, units] matrix, zero outside."""
    inside = (channel < channels)[:, None] & (unit < units)[None, :]
    return tl.load(pointer + channel[:, None] * units + unit[None, :], mask=inside, other=0.0)


@triton.jit
def _forward_kernel(
    x, w1, b1, w2, b2, seed, y, tokens, units, channels, threshold, scale,
    DROP: tl.constexpr, TOKENS: tl.constexpr, UNITS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    x, y = x + client * tokens * channels, y + client * tokens * channels
    w1, w2 = w1 + client * units * channels, w2 + client * units * channels
    b1, b2, seed = b1 + client * units, b2 + client * channels, seed + client
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    channel = tl.arange(0, CHANNELS)
    x_rows = _rows(x, token, channel, tokens, channels)
    total = tl.zeros([TOKENS, CHANNELS], dtype=tl.float32)
    for begin in range(0, units, UNITS):
        unit = begin + tl.arange(0, UNITS)
        w1_rows = _rows(w1, unit, channel, units, channels)
        h = tl.dot(x_rows, tl.trans(w1_rows), input_precision="ieee")
        h, _ = _activate(h, b1, seed, token, unit, tokens, units, threshold, DROP)
        w2_columns = _columns(w2, channel, unit, channels, units)
        total += tl.dot(h, tl.trans(w2_columns), input_precision="ieee")
    bias = tl.load(b2 + channel, mask=channel < channels, other=0.0)
    inside = (token < tokens)[:, None] & (channel < channels)[None, :]
    out = bias[None, :] + scale * total
    tl.store(y + token[:, None] * channels + channel[None, :], out, mask=inside)


@triton.jit
def _grad_x_kernel(
    grad_y, x, w1, b1, w2, seed, grad_x, tokens, units, channels, threshold, scale,
    DROP: tl.constexpr, TOKENS: tl.constexpr, UNITS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(1).to(tl.int64)
    x, grad_x = x + client * tokens * channels, grad_x + client * tokens * channels
    grad_y += client * tokens * channels
    w1, w2 = w1 + client * units * channels, w2 + client * units * channels
    b1, seed = b1 + client * units, seed + client
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    channel = tl.arange(0, CHANNELS)
    x_rows = _rows(x, token, channel, tokens, channels)
    grad_rows = _rows(grad_y, token, channel, tokens, channels)
    total = tl.zeros([TOKENS, CHANNELS], dtype=tl.float32)
    for begin in range(0, units, UNITS):
        unit = begin + tl.arange(0, UNITS)
        w1_rows = _rows(w1, unit, channel, units, channels)
        h = tl.dot(x_rows, tl.trans(w1_rows), input_precision="ieee")
        _, active = _activate(h, b1, seed, token, unit, tokens, units, threshold, DROP)
        w2_columns = _columns(w2, channel, unit, channels, units)
        grad_h = tl.dot(grad_rows, w2_columns, input_precision="ieee")
        grad_h = tl.where(active, grad_h, 0.0)
        total += tl.dot(grad_h, w1_rows, input_precision="ieee")
    inside = (token < tokens)[:, None] & (channel < channels)[None, :]
    tl.store(grad_x + token[:, None] * channels + channel[None, :], scale * total, mask=inside)


@triton.jit
def _grad_weights_kernel(
    grad_y, x, w1, b1, w2, seed, grad_w1, grad_b1, grad_w2, slice_tokens, tokens, units, channels,
    threshold, scale,
    DROP: tl.constexpr, TOKENS: tl.constexpr, UNITS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    client = tl.program_id(2).to(tl.int64)
    x, grad_y = x + client * tokens * channels, grad_y + client * tokens * channels
    w1, w2 = w1 + client * units * channels, w2 + client * units * channels
    b1, seed = b1 + client * units, seed + client
    unit = tl.program_id(0) * UNITS + tl.arange(0, UNITS)
    part = tl.program_id(1).to(tl.int64)
    channel = tl.arange(0, CHANNELS)
    w1_rows = _rows(w1, unit, channel, units, channels)
    w2_columns = _columns(w2, channel, unit, channels, units)
    sum_w1 = tl.zeros([UNITS, CHANNELS], dtype=tl.float32)
    sum_w2 = tl.zeros([UNITS, CHANNELS], dtype=tl.float32)
    sum_b1 = tl.zeros([UNITS], dtype=tl.float32)
    for begin in range(0, slice_tokens, TOKENS):
        token = part * slice_tokens + begin + tl.arange(0, TOKENS)
        x_rows = _rows(x, token, channel, tokens, channels)
        grad_rows = _rows(grad_y, token, channel, tokens, channels)
        h = tl.dot(x_rows, tl.trans(w1_rows), input_precision="ieee")
        h, active = _activate(h, b1, seed, token, unit, tokens, units, threshold, DROP)
        grad_h = tl.dot(grad_rows, w2_columns, input_precision="ieee")
        grad_h = tl.where(active, grad_h, 0.0)
        sum_w1 += tl.dot(tl.trans(grad_h), x_rows, input_precision="ieee")
        sum_w2 += tl.dot(tl.trans(h), grad_rows, input_precision="ieee")
        sum_b1 += tl.sum(grad_h, axis=0)
    inside = (unit < units)[:, None] & (channel < channels)[None, :]
    slot = client * tl.num_programs(1) + part
    at = slot * units * channels
    w1_at = at + unit[:, None] * channels + channel[None, :]
    w2_at = at + channel[None, :] * units + unit[:, None]
    tl.store(grad_w1 + w1_at, scale * sum_w1, mask=inside)
    tl.store(grad_w2 + w2_at, scale * sum_w2, mask=inside)
    tl.store(grad_b1 + slot * units + unit, scale * sum_b1, mask=unit < units)


def _numbers(tokens: int, units: int, channels: int, dropout: float) -> tuple:
    """The scalar arguments: sizes, and threshold and scale of the dropout."""
    if channels > MAX_CHANNELS:
        raise ValueError(
            f"fused_ffn: the Triton kernels take at most {MAX_CHANNELS} channels, got {channels}; "
            "use backend='torch'"
        )
    if units * channels >= 2**31:
        raise ValueError(f"fused_ffn: w1 [{units}, {channels}] has 2**31 elements or more")
    threshold = int(dropout * 65536.0 + 0.5)
    scale = 65536.0 / (65536 - threshold) if threshold < 65536 else 0.0
    return tokens, units, channels, threshold, scale


def _constants(most_tokens: int, channels: int, drop: bool) -> dict:
    block = max(16, triton.next_power_of_2(channels))
    tokens = most_tokens if block <= 32 else FEWEST_TOKENS
    return {"DROP": drop, "TOKENS": tokens, "UNITS": UNITS, "CHANNELS": block}


def _block_tokens(most: int, tokens: int, clients: int = 1) -> int:
    """Tokens of a block: a smaller block where the grid would leave multiprocessors idle. It
    depends on the number of tokens alone, so that the bits do not depend on the device."""
    while most > FEWEST_TOKENS and clients * triton.cdiv(tokens, most) < PROGRAMS:
        most //= 2
    return most


def _on_device(t: Tensor) -> contextlib.AbstractContextManager:
    return torch.cuda.device(t.device) if t.is_cuda else contextlib.nullcontext()


def fused_ffn(
    x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, seed: Tensor, dropout: float
) -> Tensor:  # [T, C] -> [T, C], or of clients [k, T, C] -> [k, T, C]
    """Launch on the current stream."""
    inputs = [t.contiguous() for t in (x, w1, b1, w2, b2, seed)]
    numbers = _numbers(x.shape[-2], *w1.shape[-2:], dropout)
    tokens, _, channels, threshold, _ = numbers
    y, clients = torch.empty_like(inputs[0]), seed.numel()
    if tokens > 0:
        most = _block_tokens(FORWARD[0], tokens, clients)
        constants = _constants(most, channels, threshold > 0)
        grid = (triton.cdiv(tokens, constants["TOKENS"]), clients)
        with _on_device(x):
            _forward_kernel[grid](*inputs, y, *numbers, **constants, num_warps=FORWARD[1])
    return y


def fused_ffn_backward(
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
    """Gradients for x, w1, b1, w2, b2; empty for x, and for w1 and w2, when not needed."""
    inputs = [t.contiguous() for t in (grad_y, x, w1, b1, w2, seed)]
    numbers = _numbers(x.shape[-2], *w1.shape[-2:], dropout)
    tokens, units, channels, threshold, _ = numbers
    of_all, clients = w1.shape[:-2], seed.numel()  # [] or [k]
    slices = min(MAX_SLICES, triton.cdiv(tokens, SLICE_TOKENS))
    grad_x = x.new_empty(*of_all, tokens if need_x else 0, channels)
    parts = [x.new_empty(*of_all, slices, *t.shape[len(of_all) :]) for t in (w1, b1, w2)]
    if need_x and tokens > 0:
        most = _block_tokens(GRAD_X[0], tokens, clients)
        constants = _constants(most, channels, threshold > 0)
        grid = (triton.cdiv(tokens, constants["TOKENS"]), clients)
        with _on_device(x):
            _grad_x_kernel[grid](*inputs, grad_x, *numbers, **constants, num_warps=GRAD_X[1])
    if tokens > 0:
        constants = _constants(GRAD_WEIGHTS[0], channels, threshold > 0)
        block = constants["TOKENS"]
        slice_tokens = triton.cdiv(triton.cdiv(tokens, slices), block) * block
        with _on_device(x):
            _grad_weights_kernel[(triton.cdiv(units, UNITS), slices, clients)](
                *inputs, *parts, slice_tokens, *numbers, **constants, num_warps=GRAD_WEIGHTS[1]
            )
    grad_w1, grad_b1, grad_w2 = (part.sum(len(of_all)) for part in parts)
    if not need_w:
        grad_w1 = w1.new_empty(*of_all, 0, channels)
        grad_w2 = w2.new_empty(*of_all, channels, 0)
    return grad_x, grad_w1, grad_b1, grad_w2, grad_y.sum(-2)


# What the ahead-of-time check compiles: kernel, argument types, constants, warps.
_POINTERS = dict.fromkeys(("x", "w1", "b1", "w2"), "*fp32") | {"seed": "*i64"}
_NUMBERS = {"tokens": "i32", "units": "i32", "channels": "i32", "threshold": "i32", "scale": "fp32"}
_GRADS = dict.fromkeys(("grad_w1", "grad_b1", "grad_w2"), "*fp32")
AOT = [
    (kernel, _POINTERS | types | _NUMBERS, _constants(tokens, channels, drop), shape[1])
    for kernel, shape, types in (
        (_forward_kernel, FORWARD, {"b2": "*fp32", "y": "*fp32"}),
        (_grad_x_kernel, GRAD_X, {"grad_y": "*fp32", "grad_x": "*fp32"}),
        (_grad_weights_kernel, GRAD_WEIGHTS, {"grad_y": "*fp32", "slice_tokens": "i32"} | _GRADS),
    )
    for tokens, drop, channels in (
        (shape[0], True, 32),
        (FEWEST_TOKENS, True, 32),
        (FEWEST_TOKENS, False, MAX_CHANNELS),
    )
]
