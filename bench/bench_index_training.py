"""A training step of DSA-IGN at batch 128 against torch's own modules, interleaved.

The baseline is what one writes without this project: nn.TransformerEncoder (batch_first, the same
dropout), the losses in eager torch, torch.optim.Adam. Both see the same freed-memory setting in
the last case; in the others the baseline has the C library's defaults.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from c2v_sim.index.dsa_ign import (
    CHANNELS,
    HEADS,
    HIDDEN,
    LAYERS,
    TOKENS,
    build_network,
    losses,
)
from c2v_sim.index.encoders.encoder import WIDTH
from c2v_sim.system.machine import keep_freed_memory
from c2v_sim.training.arena import Arena, layout_of
from c2v_sim.training.local_client import LocalClient
from c2v_sim.training.optimisers import Adam

BATCH = 128
# Per layer two products of tokens × 32 × 2048 forward, five backward (one makes hidden values
# again).
FLOPS = 7 * LAYERS * 2.0 * BATCH * TOKENS * CHANNELS * HIDDEN


class PlainNetwork(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(CHANNELS, HEADS, HIDDEN, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, LAYERS)
        self.position = nn.Parameter(torch.randn(TOKENS, CHANNELS))
        self.decoder = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, d: Tensor, label: Tensor) -> Tensor:
        x = d * math.sqrt(WIDTH)
        tokens = torch.cat([x, x], 1).view(-1, TOKENS, CHANNELS) + self.position
        out = self.encoder(tokens).reshape(-1, 2 * WIDTH)
        z, u = out.split(WIDTH, dim=1)
        z_unit, u_unit = F.normalize(z, dim=1), F.normalize(u, dim=1)
        sim = (1 - (z_unit * F.normalize(label, dim=1)).sum(1)).mean()
        orth = (z_unit @ u_unit.T).abs().mean()
        diagonal = torch.eye(len(d), dtype=torch.bool)
        div = (u_unit @ u_unit.T).masked_fill(diagonal, -torch.inf).logsumexp(1).mean()
        return sim + orth + F.mse_loss(self.decoder(out), x) + div


def plain_step(dropout: float, d: Tensor, label: Tensor):
    network = PlainNetwork(dropout)
    adam = torch.optim.Adam(network.parameters(), lr=1e-3)

    def step() -> None:
        adam.zero_grad()
        network(d, label).backward()
        adam.step()

    return step


def our_step(dropout: float, d: Tensor, label: Tensor):
    network = build_network("linear", HIDDEN, dropout, seed=0)
    layout = layout_of(network)
    arena = Arena(layout, 1)
    arena.read(network, 0)
    client = LocalClient(network, layout, torch.device("cpu"))
    client.begin_participation(0, 1, BATCH, arena, seed=0)
    update = Adam(1e-3).start(client)
    ones = torch.ones(4)

    def step() -> None:
        (losses(network, d, label) @ ones).backward()
        update()

    return step


@pytest.mark.parametrize("dropout", [0.1, 0.0])
@pytest.mark.parametrize("keep_memory", [False, True], ids=["default-memory", "kept-memory"])
def test_step(compare, dropout, keep_memory):
    """`kept-memory` comes last: the setting stays for the process."""
    if keep_memory and not keep_freed_memory():
        pytest.skip("the C library is not glibc")
    g = torch.Generator().manual_seed(0)
    d, label = (F.normalize(torch.randn(BATCH, WIDTH, generator=g), dim=1) for _ in range(2))
    row = compare(
        our_step(dropout, d, label),
        {"plain": plain_step(dropout, d, label)},
        flops=FLOPS,
        rounds=7,
    )
    row["samples/s"] = BATCH / (row["ms"] / 1e3)
