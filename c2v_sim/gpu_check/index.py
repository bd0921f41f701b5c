"""The index's network, trained FEDERATED: one lane against several, bit for bit."""

import numpy as np
import torch
from torch import Tensor

from c2v_sim.data.partition import Partition
from c2v_sim.gpu_check.outcomes import CheckFailed, Facts
from c2v_sim.gpu_check.training import LANES, SIZES
from c2v_sim.index.config import IndexConfig
from c2v_sim.index.encoders.encoder import WIDTH
from c2v_sim.index.training import Pairs, train_network
from c2v_sim.system.machine import deterministic


def check_index(device: torch.device, same: bool) -> Facts:
    """Two rounds of uneven clients; the facts are how far the lanes are apart."""
    generator = torch.Generator().manual_seed(0)
    count = sum(SIZES)
    images, labels = (torch.randn(n, WIDTH, generator=generator) for n in (count, 4))
    y = torch.randint(4, (count,), generator=generator)
    ids = np.split(np.arange(count), np.cumsum(SIZES)[:-1])
    partition = Partition(tuple(ids), tuple(i[:1] for i in ids), "natural")
    pairs, rows = Pairs(images, labels, y, device), []
    for lanes in (1, LANES):
        config = IndexConfig(
            strategy="federated",
            epochs=2,
            local_epochs=1,
            participation=1.0,
            hidden=64,
            batch_size=8,
            lanes=lanes,
            device=device.type,
        )
        with deterministic(same, device):
            network, _ = train_network(pairs, partition, config)
        rows.append(torch.cat([p.detach().cpu().flatten() for p in network.parameters()]))
    difference = largest(rows[0] - rows[1])
    facts: Facts = {"same bits": torch.equal(*rows), "largest difference": difference}
    if same and not torch.equal(*rows):
        raise CheckFailed(f"{LANES} lanes have other bits than one (by {difference:.3g})", facts)
    if not difference <= 1e-2 * largest(rows[0]):
        raise CheckFailed(f"{LANES} lanes are {difference:.3g} off", facts)
    return facts


def largest(x: Tensor) -> float:
    return x.abs().max().item()
