"""Clustered sampling by similarity (Fraboni et al., 2021): urns of clients that pull alike.

    D_ij     the angle between the last updates of clients i and j (samplers/last_updates.py)
    tree     hierarchical clustering of D by Ward's method
    groups   the largest parts of the tree whose tickets fit into one urn
    urns     the k largest groups have one each, the others fill the room that is left, in order

Tickets, urns, weights 1/k and the expected weight N_i / N are those of samplers/urns.py. A client
with more tickets than an urn has room for has urns of its own, and its rest is grouped. Clients
that have not taken part yet are groups of their own. A round takes O(M^2); state: last_updates.py.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from c2v_sim.system.seeding import SAMPLING, rng
from c2v_sim.training.samplers.last_updates import LastUpdates, angle
from c2v_sim.training.samplers.sampler import Sampler, SamplerRun
from c2v_sim.training.samplers.urns import Line


@dataclass
class ClusteredBySimilarity(Sampler):
    sketch: int = 0
    seed: int = 0
    weighs_answers = True

    def start(self, run: SamplerRun) -> None:
        self.updates = LastUpdates(run, angle, self.sketch, self.seed)

    def __call__(self, seed: int, t: int, sizes: np.ndarray, k: int) -> np.ndarray:
        angles = self.updates.table.double().cpu().numpy()
        return by_similarity(angles, self.updates.known, sizes, k).draw(k, rng(seed, SAMPLING, t))

    def finish_rows(self, clients: np.ndarray, rows: Tensor, origin: Tensor) -> None:
        self.updates.keep(clients, rows, origin)


def by_similarity(distances: np.ndarray, known: np.ndarray, sizes: np.ndarray, k: int) -> Line:
    """The urns, from distances [M, M] between the clients that are `known`, and sizes [M]."""
    tickets, room = k * sizes.astype(np.int64), int(sizes.sum())
    rest = tickets % room
    near, others = np.flatnonzero(known & (rest > 0)), np.flatnonzero(~known & (rest > 0))
    groups = fitting_groups(distances[np.ix_(near, near)], rest[near], room)
    groups = [near[group] for group in groups] + list(others[:, None])
    groups.sort(key=lambda group: (-rest[group].sum(), group[0]))
    urns = [[(int(i), room)] for i in np.repeat(np.arange(len(sizes)), tickets // room)]
    own, held = len(urns), [[(int(i), int(rest[i])) for i in group] for group in groups]
    urns += held[: k - own]
    fill(urns, [ticket for group in held[k - own :] for ticket in group], room)
    ids, amounts = zip(*(ticket for urn in urns for ticket in urn), strict=True)
    return Line.of(np.array(ids), np.array(amounts))


def fitting_groups(distances: np.ndarray, tickets: np.ndarray, room: int) -> list[np.ndarray]:
    """The largest parts of the tree whose tickets [n] fit into `room`; members ascending."""
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    count = len(tickets)
    groups = {i: np.array([i]) for i in range(count)}
    tree = linkage(squareform(distances, checks=False), "ward") if count > 1 else ()
    for node, (one, other, *_) in enumerate(tree, start=count):
        pair = int(one), int(other)
        if all(p in groups for p in pair):
            merged = np.sort(np.concatenate([groups[p] for p in pair]))
            if tickets[merged].sum() <= room:
                groups[node] = merged
                for p in pair:
                    del groups[p]
    return list(groups.values())


def fill(urns: list[list[tuple[int, int]]], waiting: list[tuple[int, int]], room: int) -> None:
    """Lay the tickets that wait, client by client, into the first urn that has room left."""
    free = [room - sum(amount for _, amount in urn) for urn in urns]
    urn = 0
    for client, amount in waiting:
        while amount:
            while not free[urn]:
                urn += 1
            taken = min(amount, free[urn])
            urns[urn].append((client, taken))
            free[urn] -= taken
            amount -= taken
