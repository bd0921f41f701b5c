"""short_attention and its gradient against torch, at the size of DSA-IGN."""

import torch

from c2v_sim.ops import short_attention
from c2v_sim.ops.short_attention import short_attention_torch


def test_short_attention(compare):
    qkv = torch.randn(128, 32, 96, requires_grad=True)
    grad_y = torch.randn(128, 32, 32)
    compare(
        lambda: torch.autograd.grad(short_attention(qkv, 8), qkv, grad_y),
        {"eager": lambda: torch.autograd.grad(short_attention_torch(qkv, 8), qkv, grad_y)},
        flops=3 * 2 * 2 * 128 * 8 * 32 * 32 * 4,
    )
