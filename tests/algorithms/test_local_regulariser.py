"""Case study iii's loss against the slow implementation and against arithmetic by hand."""

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import slow_algorithms
import torch
from torch import nn

from c2v_sim.algorithms.local_regulariser import (
    DIRECTIONS,
    LocalRegulariser,
    add_projection,
    divergence,
)
from c2v_sim.ops.projection_orthogonality import FORMS

B, WIDTH, D, K, M = 6, 5, 7, 4, 9


def problem(dtype=torch.float64, seed=0):
    """A module with P and g_P, z [B, WIDTH], logits [B, K] and an index [M, D] with a zero row."""
    g = torch.Generator().manual_seed(seed)
    module = nn.Module()
    add_projection(module, WIDTH, D, K)
    for p in module.parameters():
        p.data = torch.randn(p.shape, generator=g)
    z, logits, index = (torch.randn(n, d, generator=g) for n, d in ((B, WIDTH), (B, K), (M, D)))
    index[2] = 0
    return module.to(dtype), z.to(dtype), logits.to(dtype), (3 * index).to(dtype)


def gradients(regulariser, module, z, logits):
    """Loss, and gradients for z, logits, P, g_P's weight and bias (zeros where there is none)."""
    leaves = [z.clone().requires_grad_(), logits.clone().requires_grad_(), *module.parameters()]
    loss = regulariser(module, *leaves[:2])
    grads = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    return loss.detach(), list(grads)


def slow_loss(index, module, z, logits, form="unit", direction="forward", detach=False, **weights):
    config = SimpleNamespace(
        index="client2vec",
        omit_local_orth=False,
        dist_detach=detach,
        regulariser_weight=2.0,
        local_orth=form,
        dist_direction=direction,
        local_orth_weight=weights.get("orth_weight", -1.0),
        local_dist_weight=weights.get("dist_weight", -1.0),
    )
    slow = slow_algorithms.Slow(None, config, index, None)
    parts = SimpleNamespace(P=module.c2v_projection, g_P=module.c2v_projection_classifier)
    return slow_algorithms.regulariser(slow, parts, z, logits)


CASES = [
    *({"form": f, "direction": d} for f, d in itertools.product(FORMS, DIRECTIONS)),
    *({"form": "unit", "direction": d, "detach": True} for d in DIRECTIONS),
    {"form": "unit", "orth_weight": 3.0},
    {"form": "unit", "dist_weight": 0.3},
    {"form": "raw", "orth_weight": 0.5, "dist_weight": 3.0},
    {"form": "cosine", "orth_weight": 0.0},
    {"form": "unit", "dist_weight": 0.0},
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)], ids=str
)
def test_equals_the_slow_implementation(case, dtype, tolerance):
    module, z, logits, index = problem(dtype)
    regulariser = LocalRegulariser(index, **{"orth_weight": 2.0, "dist_weight": 2.0} | case)
    got = gradients(regulariser, module, z, logits)
    slow = gradients(lambda *args: slow_loss(index, *args, **case), module, z, logits)
    torch.testing.assert_close(got, slow, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradcheck(case):
    module, z, logits, index = problem()
    regulariser = LocalRegulariser(index, **case)
    inputs = [z.requires_grad_()]
    if not case.get("detach"):  # whose gradient for the logits is not that of the value
        inputs.append(logits.requires_grad_())
    assert torch.autograd.gradcheck(lambda z, y=logits: regulariser(module, z, y), inputs)


def by_hand(form, direction, module, z, logits, index):
    """The loss and its gradients for z and P, with weights 3 and 0.5, in NumPy."""
    weights = [p.detach().numpy() for p in module.parameters()]
    P, G, b = weights  # [D, WIDTH], [K, D], [K]
    z, logits, beta = z.numpy(), logits.numpy(), index.numpy()
    z_p = z @ P.T
    lengths = np.linalg.norm(beta, axis=1, keepdims=True)
    if form != "raw":
        beta = np.divide(beta, lengths, out=np.zeros_like(beta), where=lengths > 0)
    of_z = np.linalg.norm(z_p, axis=1, keepdims=True) if form == "cosine" else np.ones((B, 1))
    unit = z_p / of_z
    products = unit @ beta.T
    by_unit = np.sign(products) @ beta / (B * M)
    if form == "cosine":
        by_unit = by_unit - unit * (unit * by_unit).sum(1, keepdims=True)
    by_z_p = 3 * by_unit / of_z

    def softmax(x):
        e = np.exp(x - x.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    p, q = softmax(logits), softmax(z_p @ G.T + b)
    if direction == "forward":
        divergence = (p * np.log(p / q)).sum(1)
        by_logits_p = (q - p) / B
    else:
        divergence = (q * np.log(q / p)).sum(1)
        by_logits_p = q * (np.log(q / p) - divergence[:, None]) / B
    by_z_p = by_z_p + 0.5 * by_logits_p @ G
    loss = 3 * np.abs(products).mean() + 0.5 * divergence.mean()
    return loss, by_z_p @ P, by_z_p.T @ z


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_equals_arithmetic_by_hand(form, direction):
    module, z, logits, index = problem()
    regulariser = LocalRegulariser(
        index, orth_weight=3.0, dist_weight=0.5, form=form, direction=direction
    )
    loss, grads = gradients(regulariser, module, z, logits)
    wanted = by_hand(form, direction, module, z, logits, index)
    for got, value in zip((loss, grads[0], grads[2]), wanted, strict=True):
        assert got.numpy() == pytest.approx(value, abs=1e-12)


def logit_pair(rows, classes, scale=2.0, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [scale * torch.randn(rows, classes, generator=g) for _ in range(2)]


@pytest.mark.parametrize("scale", [1e-4, 2.0, 30.0, 1000.0])
@pytest.mark.parametrize("classes", [1, 2, 33])
def test_divergence_of_flat_and_extreme_logits(classes, scale):
    a, b = (x.requires_grad_() for x in logit_pair(13, classes, scale))
    exact = [x.detach().double().requires_grad_() for x in (a, b)]
    value, wanted = divergence(a, b), divergence(*exact)
    rounding = 1e-6 * max(1.0, scale)
    torch.testing.assert_close(value.double(), wanted, rtol=1e-6, atol=rounding)
    grads = torch.autograd.grad(value, (a, b))
    for grad, of_exact in zip(grads, torch.autograd.grad(wanted, exact), strict=True):
        torch.testing.assert_close(grad.double(), of_exact, rtol=1e-4, atol=rounding)


def test_divergence_is_zero_for_equal_predictions_and_ignores_shifts_and_order():
    a, b = logit_pair(6, 9)
    assert divergence(a, a + 3).abs() < 1e-6
    base = divergence(a, b)
    assert base > 0
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    for x, y in ((a + 20, b - 7), (a[:, order], b[:, order])):
        torch.testing.assert_close(divergence(x, y), base, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("which", [0, 1])
def test_divergence_shows_nan_and_inf(bad, which):
    pair = logit_pair(5, 7)
    pair[which][2, 3] = bad
    assert not divergence(*pair).isfinite()


def test_divergence_gradcheck():
    pair = [x.double().requires_grad_() for x in logit_pair(4, 5)]
    assert torch.autograd.gradcheck(divergence, pair)


def test_an_index_is_prepared_when_it_is_set():
    module, z, logits, index = problem()
    regulariser = LocalRegulariser(index[:0], dist_weight=0.0)
    assert regulariser(module, z, logits) == 0
    regulariser = dataclasses.replace(regulariser, index=index)
    wanted = slow_loss(index, module, z, logits, form="unit", orth_weight=1.0, dist_weight=0.0)
    torch.testing.assert_close(regulariser(module, z, logits), wanted)


def test_refusals_list_what_is_known():
    with pytest.raises(ValueError, match="unknown form 'dot'; known: unit, cosine, raw"):
        LocalRegulariser(torch.zeros(0, 3), form="dot")
    with pytest.raises(ValueError, match="unknown direction 'both'; known: forward, reverse"):
        LocalRegulariser(torch.zeros(0, 3), direction="both")
