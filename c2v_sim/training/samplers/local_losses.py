"""The global model's mean cross-entropy on the training samples of some clients, in eval mode."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from c2v_sim.models import logits
from c2v_sim.system import ranks
from c2v_sim.training.arena import Arena
from c2v_sim.training.cohort import dealt, largest_first
from c2v_sim.training.lane import Lane
from c2v_sim.training.lanes import Lanes
from c2v_sim.training.local_training import Data

BATCH = 500


def local_losses(
    lanes: Lanes,
    server: Arena,
    data: Data,
    samples: Sequence[np.ndarray],  # of all clients
    clients: Sequence[int],
) -> np.ndarray:  # float32 [n]
    """In the order of `clients`; each on one lane, so the bits are those of any number of lanes."""
    losses = torch.zeros(len(clients), device=data.device)

    def work(lane: Lane, position: int) -> None:
        ids = lane.upload(samples[clients[position]])
        lane.client.model.bind(server.data[0], server.integers[0])
        module = lane.client.module.eval()
        total = torch.zeros((), device=data.device)
        with torch.no_grad():
            for part in ids.split(BATCH):
                x, y = data.batch(part)
                total += F.cross_entropy(logits(module, x), y, reduction="sum")
        losses[position] = total / len(ids)

    sizes = [len(samples[client]) for client in clients]
    owners = dealt(sizes)
    mine = [p for p in largest_first(sizes) if owners[p] == ranks.rank()]
    with ranks.same_fate():
        for _ in lanes.run(work, mine):
            pass
    return ranks.pick(losses, owners).cpu().numpy()
