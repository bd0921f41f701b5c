"""Stage 9 where clients are not tested by the one global model.

The model of a client is the global one with the algorithm's `personalise` on top: that of its
cluster, or what it keeps for itself. A client that has nothing of its own yet, and a test sample of
nobody, see the global model as it is.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from c2v_sim.algorithms import Algorithm
from c2v_sim.algorithms.fedavg import CLUSTER, GLOBAL, PERSONAL
from c2v_sim.data.partition import Partition
from c2v_sim.data.resident import ResidentData
from c2v_sim.models import logits
from c2v_sim.simulator.evaluation import batch_of, correct
from c2v_sim.system import ranks
from c2v_sim.training.arena import Arena
from c2v_sim.training.client_rows import ClientRows, lent
from c2v_sim.training.cohort import dealt, largest_first
from c2v_sim.training.lanes import Lane, Lanes

# What is added to PROTOCOL, by the kind of models that are tested.
AT_HOME = {
    GLOBAL: "",
    CLUSTER: "; the global model of a client is that of its cluster, and test samples of nobody do "
    "not count",
    PERSONAL: "; the global model of a client is its own, or that with the part which it keeps for "
    "itself, where it has one (accuracy_shared: the same by the models that are not personal)",
}

Write = Callable[[Lane, int], None]  # of a client's model into the row of a lane


def correct_at_home(
    lanes: Lanes,
    server: Arena,
    data: ResidentData,
    partition: Partition,
    algorithm: Algorithm,
    tune: Write | None = None,
) -> np.ndarray:
    """For each test sample whether its client's model is right, bool [N].

    tune: how models are made that no `personalise` has.
    """
    if algorithm.tested == GLOBAL:
        return correct(lanes, server, data)
    test, rows = partition.test, algorithm.personal
    clients = [i for i in range(partition.clients) if algorithm.has_own(i) and len(test[i])]
    algorithm.before_test(clients)
    others = sum(len(test[i]) for i in clients) < len(data)
    marks = correct(lanes, server, data) if others else np.zeros(len(data), dtype=bool)

    def write(lane: Lane, client: int) -> None:
        algorithm.personalise(client, lane.client.row.data[0])

    found = correct_by_client(lanes, server, data, test, clients, tune or write, rows)
    for client, right in found.items():
        marks[test[client]] = right
    return marks


def correct_by_client(
    lanes: Lanes,
    server: Arena,
    data: ResidentData,
    test: Sequence[np.ndarray],
    clients: Sequence[int],
    write: Write,
    rows: ClientRows | None = None,
) -> dict[int, np.ndarray]:
    """For each of `clients` and each of its samples in `test`, whether its model is right.

    write: puts the model of a client over the global one in the lane's row, on the lane's thread;
    rows: what it reads there of clients.
    """

    def work(lane: Lane, position: int) -> np.ndarray:
        client = lane.client
        client.row.data.copy_(server.data[:1])
        write(lane, clients[position])
        client.model.bind(client.row.data[0], server.integers[0])
        module, ids = client.module.eval(), lane.upload(test[clients[position]])
        with torch.no_grad():
            pairs = [data.batch(part) for part in ids.split(batch_of(data, server))]
            right = [logits(module, x).argmax(dim=1) == y for x, y in pairs]
        return torch.cat(right).cpu().numpy()

    sizes = [len(test[client]) for client in clients]
    testers = dealt(sizes)
    mine = [p for p in largest_first(sizes) if testers[p] == ranks.rank()]
    with lent([rows] if rows else [], clients, testers), ranks.same_fate():
        found = dict(lanes.run(work, mine))
    return {clients[p]: right for own in ranks.gather(found) for p, right in own.items()}
