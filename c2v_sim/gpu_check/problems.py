"""For every operator a problem of any size: inputs, and what is computed of them by a backend.

`run(tensors, backend)` gives values and gradients; with float64 tensors and backend "torch" that is
the truth. `bytes` or `flops` are what the computation must move or compute at the least.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from c2v_sim import ops
from c2v_sim.ops.layers.convolution import convolution
from c2v_sim.ops.layers.depthwise_convolution import depthwise_convolution
from c2v_sim.ops.layers.max_pool import max_pool
from c2v_sim.ops.layers.normalize import normalize
from c2v_sim.ops.layers.pooled_convolution import pooled_convolution
from c2v_sim.ops.weighted_sum import add_weighted as add

Run = Callable[[list[Tensor], str | None], list[Tensor]]


@dataclass(frozen=True)
class Problem:
    tensors: list[Tensor]  # float32, on the CPU
    run: Run
    bytes: float = 0.0
    flops: float = 0.0


def draw(seed: int) -> Callable[..., Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator)


def with_gradients(f: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """The value of f, and the gradients of its sum, each element with a weight of its own."""
    leaves = [t.detach().requires_grad_() for t in inputs]
    value = f(*leaves)
    weights = torch.linspace(-1.0, 1.0, value.numel(), device=value.device, dtype=value.dtype)
    total = (value.reshape(-1) * weights).sum() if value.dim() else value
    return [value.detach(), *torch.autograd.grad(total, leaves)]


def weighted_sum(rows: int, size: int) -> Problem:
    randn = draw(rows)
    tensors = [randn(rows, size), torch.rand(rows, generator=torch.Generator().manual_seed(1))]
    return Problem(
        tensors,
        lambda t, backend: [ops.weighted_sum(*t, backend=backend)],
        bytes=4 * (rows + 1) * size,
    )


def add_weighted(rows: int, size: int) -> Problem:
    """Row after row into a sum."""

    def run(t: list[Tensor], backend: str | None) -> list[Tensor]:
        out = t[1].clone()
        for row in t[0]:
            add(row, 0.3, out, backend=backend)
        return [out]

    randn = draw(rows)
    return Problem([randn(rows, size), randn(size)], run, bytes=12 * rows * size)


def sgd_step(rows: int, size: int, case: str = "momentum") -> Problem:
    """`plain`, with `momentum`, or with `everything` that an algorithm may add."""
    randn = draw(size)
    tensors = [randn(rows, size) for _ in range(5)]

    def run(t: list[Tensor], backend: str | None) -> list[Tensor]:
        p, g, b, linear, anchor = (x.clone() for x in t)
        more: dict = {}
        if case == "everything":
            more = {"linear": linear, "anchor": anchor, "proximal": 0.1, "max_grad_norm": 2.0}
        momentum: dict = {} if case == "plain" else {"momentum_buffer": b, "momentum": 0.9}
        for _ in range(2):
            ops.sgd_step_(p, g, lr=0.1, weight_decay=0.01, backend=backend, **momentum, **more)
        return [p, g, b]

    return Problem(tensors, run)


def sgd_step_timed(rows: int, size: int) -> Problem:
    """In place and without copies: momentum as in training."""
    tensors = [0.01 * draw(size)(rows, size) for _ in range(3)]

    def run(t: list[Tensor], backend: str | None) -> list[Tensor]:
        ops.sgd_step_(*t, lr=1e-3, momentum=0.9, weight_decay=1e-3, backend=backend)
        return t

    return Problem(tensors, run, bytes=4 * 5 * rows * size)


def fused_ffn(tokens: int, units: int, dropout: float = 0.0) -> Problem:
    """On a grid where W1 x + b1 is exact and never 0: near 0 it is chance what relu passes."""
    randn, channels = draw(tokens), 32
    x = (randn(tokens, channels) * 16).round() / 16
    w1 = (randn(units, channels) * channels**-0.5 * 64).round() / 64
    b1 = ((0.1 * randn(units) * 1024).round() + 0.5) / 1024
    w2, b2 = randn(channels, units) * units**-0.5, 0.1 * randn(channels)

    def run(t: list[Tensor], backend: str | None) -> list[Tensor]:
        return with_gradients(
            lambda *leaves: ops.fused_ffn(*leaves, dropout=dropout, seed=7, backend=backend), t
        )

    return Problem([x, w1, b1, w2, b2], run, flops=2 * 7 * tokens * units * channels)


def index_losses(batch: int, width: int) -> Problem:
    randn = draw(batch)

    def run(t: list[Tensor], backend: str | None) -> list[Tensor]:
        def total(*leaves: Tensor) -> Tensor:
            sim, orth, div = ops.index_losses(*leaves, backend=backend)
            return sim + 0.5 * orth + 0.25 * div

        return with_gradients(total, t)

    # Two matrices of cosines, and two products for the gradients of each.
    return Problem([randn(batch, width) for _ in range(3)], run, flops=12 * batch**2 * width)


def projection_orthogonality(batch: int, clients: int, width: int, form: str = "cosine") -> Problem:
    randn = draw(batch)

    def run(t: list[Tensor], backend: str | None) -> list[Tensor]:
        def loss(z: Tensor) -> Tensor:
            return ops.projection_orthogonality(z, t[1], form, backend=backend)

        return with_gradients(loss, t[:1])

    flops = 4 * batch * clients * width
    return Problem([randn(batch, width), randn(clients, width)], run, flops=flops)


def client_scores(clients: int, width: int) -> Problem:
    randn, cohort = draw(clients), list(range(0, clients, max(1, clients // 10)))
    sizes = [1 + i % 7 for i in cohort]

    def run(t: list[Tensor], backend: str | None) -> list[Tensor]:
        return [ops.client_scores(t[0], t[1], cohort, sizes, backend=backend)]

    index = [randn(clients, width), randn(clients, width)]
    return Problem(index, run, bytes=2 * 4 * clients * width)


def convolve(batch: int, channels: int, side: int, taps: int) -> Problem:
    randn = draw(batch)
    tensors = [randn(batch, channels, side, side), randn(channels, channels, taps, taps) * 0.1]

    def run(t: list[Tensor], backend: str | None) -> list[Tensor]:
        return with_gradients(lambda x, w: convolution(x, w, padding=taps // 2, backend=backend), t)

    return Problem(tensors, run, flops=6 * batch * (channels * side * taps) ** 2)


def convolve_and_pool(batch: int, channels: int, side: int, taps: int) -> Problem:
    randn = draw(batch)
    tensors = [randn(batch, channels, side, side), randn(channels, channels, taps, taps) * 0.1]

    def run(t: list[Tensor], backend: str | None) -> list[Tensor]:
        return with_gradients(lambda x, w: pooled_convolution(x, w, backend=backend), t)

    return Problem(tensors, run, flops=6 * batch * (channels * (side - taps + 1) * taps) ** 2)


def convolve_each(batch: int, channels: int, side: int, stride: int = 1) -> Problem:
    randn = draw(batch)
    tensors = [randn(batch, channels, side, side), randn(channels, 1, 3, 3)]

    def run(t: list[Tensor], backend: str | None) -> list[Tensor]:
        each = partial(depthwise_convolution, stride=stride, backend=backend)
        return with_gradients(each, t)

    return Problem(tensors, run, bytes=4 * 5 * tensors[0].numel())


def pool(batch: int, channels: int, side: int) -> Problem:
    tensors = [draw(batch)(batch, channels, side, side)]

    def run(t: list[Tensor], backend: str | None) -> list[Tensor]:
        return with_gradients(lambda x: max_pool(x, relu=True, backend=backend), t)

    return Problem(tensors, run, bytes=4 * 2.5 * tensors[0].numel())


def normal(batch: int, channels: int, side: int, groups: int = 0) -> Problem:
    randn = draw(batch)
    x, shortcut = (randn(batch, channels, side, side) for _ in range(2))
    tensors = [x, randn(channels), randn(channels), shortcut]

    def run(t: list[Tensor], backend: str | None) -> list[Tensor]:
        def fused(x: Tensor, w: Tensor, b: Tensor, shortcut: Tensor) -> Tensor:
            cut = partial(normalize, groups=groups, most=6.0, backend=backend)
            return cut(x, w, b, shortcut=shortcut)[0]

        return with_gradients(fused, t)

    return Problem(tensors, run, bytes=4 * 12 * x.numel())


def attention(batch: int, tokens: int, heads: int, width: int) -> Problem:
    tensors = [draw(batch)(batch, tokens, 3 * heads * width)]

    def run(t: list[Tensor], backend: str | None) -> list[Tensor]:
        return with_gradients(lambda x: ops.short_attention(x, heads, backend=backend), t)

    return Problem(tensors, run, flops=12 * batch * heads * tokens**2 * width)


def mask(rows: int, columns: int) -> Problem:
    def run(t: list[Tensor], backend: str | None) -> list[Tensor]:
        seed = t[0].long()  # a whole number in any precision
        kept = ops.dropout_mask(rows, columns, 6554, seed, backend=backend)
        return [kept.to(t[0].dtype)]

    return Problem([torch.full((1,), 1234567.0)], run, bytes=rows * columns)
