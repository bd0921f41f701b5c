"""sgd_step_ against torch.optim.SGD over the same arena: bound by reading and writing it once.

Bytes: params and momentum are read and written, gradients read (and written when zeroed).
`model` steps one client's row against torch.optim.SGD(foreach=True) over 62 tensors of it, the
optimiser and zero_grad of an ordinary training loop.
"""

import pytest
import torch

from c2v_sim.ops import sgd_step_

SIZES = [60_000, 1_000_000, 11_000_000]


def arenas(rows, size, count):
    g = torch.Generator().manual_seed(0)
    return [torch.randn(rows, size, generator=g) for _ in range(count)]


def optimiser(tensors, grads, **options):
    leaves = [torch.nn.Parameter(t.clone()) for t in tensors]
    for leaf, grad in zip(leaves, grads, strict=True):
        leaf.grad = grad.clone()
    return torch.optim.SGD(leaves, **options)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rows", [1, 10])
def test_momentum_and_decay(compare, rows, size):
    p, g, b = arenas(rows, size, 3)
    options = {"lr": 1e-6, "momentum": 0.9, "weight_decay": 5e-5}
    eager = optimiser([p], [g], **options)
    fused = optimiser([p], [g], fused=True, **options)
    compare(
        lambda: sgd_step_(p, g, b, **options),
        {"eager": eager.step, "torch fused": fused.step},
        bytes=4 * 5 * rows * size,
    )


@pytest.mark.parametrize("size", SIZES)
def test_model(compare, size):
    p, g, b = (t[0] for t in arenas(1, size, 3))
    options = {"lr": 1e-6, "momentum": 0.9, "weight_decay": 5e-5}
    eager = optimiser(p.tensor_split(62), g.tensor_split(62), foreach=True, **options)

    def loop():
        eager.step()
        eager.zero_grad(set_to_none=False)

    compare(
        lambda: sgd_step_(p, g, b, zero_grads=True, **options),
        {"eager": loop},
        bytes=4 * 6 * size,
    )


@pytest.mark.parametrize("size", SIZES)
def test_feddyn(compare, size):
    p, g, linear = (t[0] for t in arenas(1, size, 3))
    options = {"lr": 1e-6, "weight_decay": 0.1}
    eager = optimiser([p], [g], **options)
    (leaf,) = eager.param_groups[0]["params"]

    def loop():
        leaf.grad.add_(linear)
        torch.nn.utils.clip_grad_norm_([leaf], 10.0)
        eager.step()

    compare(
        lambda: sgd_step_(p, g, linear=linear, max_grad_norm=10.0, **options),
        {"eager": loop},
        bytes=4 * (2 + 4) * size,
    )
