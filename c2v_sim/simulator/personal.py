"""Stage 9, with the part of the model that clients keep for themselves, where they do.

The model of a client is the global one with the algorithm's `personalise` on top. A client that has
nothing of its own yet, and a test sample of nobody, see the global model as it is.
"""

import numpy as np
import torch

from c2v_sim.algorithms import Algorithm
from c2v_sim.data.partition import Partition
from c2v_sim.data.resident import ResidentData
from c2v_sim.models import logits
from c2v_sim.simulator.evaluation import batch_of, correct
from c2v_sim.system import ranks
from c2v_sim.training.arena import Arena
from c2v_sim.training.client_rows import lent
from c2v_sim.training.cohort import dealt, largest_first
from c2v_sim.training.lanes import Lane, Lanes

AT_HOME = (
    "; the global model of a client is that with the part which the client keeps for itself, where "
    "it has taken part"
)


def correct_at_home(
    lanes: Lanes,
    server: Arena,
    data: ResidentData,
    partition: Partition,
    algorithm: Algorithm,
) -> np.ndarray:
    """For each test sample whether its client's model is right, bool [N]."""
    rows = algorithm.personal
    if rows is None:
        return correct(lanes, server, data)
    test = partition.test
    clients = [i for i in range(partition.clients) if i in rows and len(test[i])]
    sizes = [len(test[i]) for i in clients]
    others = sum(sizes) < len(data)
    marks = correct(lanes, server, data) if others else np.zeros(len(data), dtype=bool)

    def work(lane: Lane, position: int) -> np.ndarray:
        client = lane.client
        client.row.data.copy_(server.data[:1])
        algorithm.personalise(clients[position], client.row.data[0])
        client.model.bind(client.row.data[0], server.integers[0])
        module, ids = client.module.eval(), lane.upload(test[clients[position]])
        with torch.no_grad():
            pairs = [data.batch(part) for part in ids.split(batch_of(data, server))]
            right = [logits(module, x).argmax(dim=1) == y for x, y in pairs]
        return torch.cat(right).cpu().numpy()

    testers = dealt(sizes)
    mine = [p for p in largest_first(sizes) if testers[p] == ranks.rank()]
    with lent([rows], clients, testers), ranks.same_fate():
        found = dict(lanes.run(work, mine))
    for of_rank in ranks.gather(found):
        for position, right in of_rank.items():
            marks[test[clients[position]]] = right
    return marks
