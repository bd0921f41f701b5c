"""fused_ffn against nn modules at DSA-IGN's size: batch 128 of 32 tokens, 32 -> 2048 -> 32.

Work, in products of 2 * tokens * 32 * 2048 flops: forward 2; backward of the fused operator 5,
since it makes the hidden values again; of torch 4.
"""

import pytest
import torch
from torch import Tensor, nn

from c2v_sim.ops import fused_ffn
from c2v_sim.system.machine import keep_freed_memory

BATCH, LENGTH, CHANNELS, UNITS = 128, 32, 32, 2048
PRODUCT = 2.0 * BATCH * LENGTH * CHANNELS * UNITS


class Ffn(nn.Module):
    """The layer as one writes it with nn modules."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(CHANNELS, UNITS), nn.Linear(UNITS, CHANNELS)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.linear1(x).relu()))


class FusedEncoderLayer(nn.TransformerEncoderLayer):
    """torch's encoder layer with the fused feed-forward."""

    def _ff_block(self, x: Tensor) -> Tensor:
        first, second = self.linear1, self.linear2
        y = fused_ffn(
            x, first.weight, first.bias, second.weight, second.bias, dropout=self.dropout.p, seed=1
        )
        return self.dropout2(y)


def inputs() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, LENGTH, CHANNELS, generator=g)
    return x.requires_grad_(), torch.randn(x.shape, generator=g)


def fused(layer: Ffn, x: Tensor) -> Tensor:
    first, second = layer.linear1, layer.linear2
    return fused_ffn(
        x, first.weight, first.bias, second.weight, second.bias, dropout=layer.dropout.p, seed=1
    )


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_forward(compare, dropout):
    layer, (x, _) = Ffn(dropout), inputs()
    with torch.no_grad():
        compare(lambda: fused(layer, x), {"eager": lambda: layer(x)}, flops=2 * PRODUCT)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_forward_backward(compare, dropout):
    layer, (x, grad) = Ffn(dropout), inputs()
    compare(
        lambda: fused(layer, x).backward(grad),
        {"eager": lambda: layer(x).backward(grad)},
        flops=7 * PRODUCT,
    )


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_forward_backward_compiled(compare, dropout):
    layer, (x, grad) = Ffn(dropout), inputs()
    compiled = torch.compile(layer)
    compare(
        lambda: fused(layer, x).backward(grad),
        {"compiled": lambda: compiled(x).backward(grad)},
        flops=7 * PRODUCT,
    )


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_encoder_layer(compare, dropout):
    """A whole encoder layer of DSA-IGN, forward and backward: attention is torch's in both."""
    x, grad = inputs()
    options = {"dropout": dropout, "batch_first": True}
    plain = nn.TransformerEncoderLayer(CHANNELS, 8, UNITS, **options)
    faster = FusedEncoderLayer(CHANNELS, 8, UNITS, **options)
    compare(lambda: faster(x).backward(grad), {"eager": lambda: plain(x).backward(grad)})


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_forward_backward_keeping_freed_memory(compare, dropout):
    """The last, since the setting stays: what eager torch gains by keeping memory."""
    if not keep_freed_memory():
        pytest.skip("the C library is not glibc")
    layer, (x, grad) = Ffn(dropout), inputs()
    compare(
        lambda: fused(layer, x).backward(grad),
        {"eager": lambda: layer(x).backward(grad)},
        flops=7 * PRODUCT,
    )
