"""Attention with dropout in little memory: q, k, v [B, h, T, d] → [B, h, T, d].

    weights = softmax(q kᵀ / √d)  [B, h, T, T],    out = (weights ∘ kept) v / (1 - p)

At 64×64 the weights of one batch of 128 take 2 GB per layer, and autograd would keep three such
arrays. Here a few samples are computed at a time, backward computes their weights again, and what
is kept is drawn again from its seed, so that nothing of size T² stays.

A weight is dropped by 16 random bits, a quarter of the cost of drawing a float: p is rounded to a
multiple of 2⁻¹⁶ (0.1 becomes 0.100006), and the scale is that of the rounded p.

On the CPU a generator made of the seed draws them. A GPU would have to hand the seed to the host
for that, and a CUDA graph could not record it: there the seed stays on the device, and the bits are
a hash of it and of the weight's place (ops.dropout_mask).
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from c2v_sim import ops

ELEMENTS = 1 << 22  # weights that are held at once: 16 MB
LEVELS = 1 << 16


def attention(
    q: Tensor, k: Tensor, v: Tensor, p: float = 0.0, generator: torch.Generator | None = None
) -> Tensor:
    """Scaled dot-product attention; the weights are dropped with probability `p`.

    `generator` gives one seed per call. Differentiable once.
    """
    if p == 0.0:
        return F.scaled_dot_product_attention(q, k, v)
    place = "cpu" if generator is None else generator.device
    seed = torch.randint(1 << 62, (), generator=generator, device=place)
    if not on_the_host(q):
        return _Dropped.apply(q, k, v, round(p * LEVELS), seed.to(q.device))
    return _Dropped.apply(q, k, v, round(p * LEVELS), int(seed))


def on_the_host(q: Tensor) -> bool:
    return q.is_cpu


class _Dropped(torch.autograd.Function):
    """`dropped` of LEVELS is the probability."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, dropped: int, seed: int | Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.dropped, ctx.seed = dropped, seed
        out = torch.empty_like(v)
        for some in _pieces(q, k):
            weights = _weights(q[some], k[some])
            weights.mul_(_kept(weights, dropped, seed, some.start))
            torch.matmul(weights, v[some], out=out[some])
        return out.mul_(LEVELS / (LEVELS - dropped))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient: Tensor):
        q, k, v = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        gradient = gradient * (LEVELS / (LEVELS - ctx.dropped))
        scale = q.shape[-1] ** -0.5
        for some in _pieces(q, k):
            weights = _weights(q[some], k[some])
            kept = _kept(weights, ctx.dropped, ctx.seed, some.start)
            dv[some] = (weights * kept).transpose(-1, -2) @ gradient[some]
            d_weights = (gradient[some] @ v[some].transpose(-1, -2)).mul_(kept)
            d_scores = torch._softmax_backward_data(d_weights, weights, -1, weights.dtype)
            dq[some] = (d_scores @ k[some]).mul_(scale)
            dk[some] = (d_scores.transpose(-1, -2) @ q[some]).mul_(scale)
        return dq, dk, dv, None, None


def _pieces(q: Tensor, k: Tensor) -> list[slice]:
    """Slices of the batch whose weights have about ELEMENTS elements."""
    of_one = q.shape[1] * q.shape[2] * k.shape[2]
    step = max(1, ELEMENTS // of_one)
    return [slice(begin, min(begin + step, len(q))) for begin in range(0, len(q), step)]


def _weights(q: Tensor, k: Tensor) -> Tensor:  # [b, h, T, T]
    return torch.softmax(q * q.shape[-1] ** -0.5 @ k.transpose(-1, -2), dim=-1)


def _kept(weights: Tensor, dropped: int, seed: int | Tensor, start: int) -> Tensor:
    """Which weights of the samples from `start` on stay, bool of the same shape [b, h, T, T]."""
    if isinstance(seed, Tensor):
        of_one, columns = weights.shape[1] * weights.shape[2], weights.shape[3]
        rows, first = len(weights) * of_one, start * of_one
        return ops.dropout_mask(rows, columns, dropped, seed, first=first).view(weights.shape)
    generator = torch.Generator(weights.device).manual_seed(seed + start)
    words = torch.empty(-(-weights.numel() // 4), dtype=torch.int64, device=weights.device)
    bits = words.random_(-(1 << 63), None, generator=generator).view(torch.int16)
    return (bits[: weights.numel()] >= dropped - LEVELS // 2).view(weights.shape)
