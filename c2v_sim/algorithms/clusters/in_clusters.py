"""Any algorithm with a global model for every cluster of clients.

    w_c = the algorithm's update over the cohort's clients of cluster c, with p_i / sum_{j in c} p_j

Row c of the server's arena is the model of cluster c; all begin as the one model of a plain run. A
cluster has an instance of the algorithm of its own, with the server's state of its own, and counts
its own clients alone (`run.own_sizes`). What is kept of clients lies in one table for all clusters,
as a client is in one of them. A cluster of which nobody takes part stays as it is.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from c2v_sim.algorithms.fedavg import CLUSTER, PERSONAL, Algorithm, check_trains_by_loss
from c2v_sim.algorithms.run_parts import RunParts
from c2v_sim.training.arena import Arena
from c2v_sim.training.client_rows import ClientRows
from c2v_sim.training.local_client import LocalClient
from c2v_sim.training.memory import check_fits
from c2v_sim.training.optimisers import StepTerms

PREFIX = "cluster"  # of the names of the server's tensors: cluster0.velocity


@dataclass(frozen=True, eq=False)
class ClusterParts(RunParts):
    """The parts of a run, as the algorithm of one cluster sees them."""

    number: int = 0

    def server_state(self, name: str, *shape: int) -> Tensor:
        return super().server_state(f"{PREFIX}{self.number}.{name}", *shape)

    def client_rows(self, name: str, width: int) -> ClientRows:
        return self.rows[name] if name in self.rows else super().client_rows(name, width)


class InClusters(Algorithm):
    """`inner`, which stays as it is, for every cluster."""

    capturable = False  # a step that was recorded for one cluster is not that of another

    run: RunParts
    assigned: np.ndarray  # int64 [M], the cluster of each client
    cohort: np.ndarray  # of this round
    trained: np.ndarray  # the clusters of its clients
    placed: list[int] | None = None  # the clusters of the clients that never train

    def __init__(self, inner: Algorithm) -> None:
        check_trains_by_loss(inner, "clusters train by")
        self.inner = inner

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.inner.name

    @property
    def tested(self) -> str:
        return PERSONAL if self.clusters[0].tested == PERSONAL else CLUSTER

    @property
    def personal(self) -> ClientRows | None:
        return self.clusters[0].personal

    @property
    def steps_per_batch(self) -> int:  # type: ignore[override]
        return self.inner.steps_per_batch

    def adapt_model(self, model: nn.Module, width: int, classes: int) -> nn.Module:
        return self.inner.adapt_model(model, width, classes)

    def start(self, run: RunParts) -> None:
        """One cluster of all clients, until `form` says which there are."""
        self.run = run
        self.form(np.zeros(run.clients, dtype=np.int64))

    def form(self, assigned: np.ndarray, count: int = 0) -> None:
        """Client i is in cluster assigned[i] from now on; before the first round.

        count: of the clusters, where some have no clients yet.
        """
        run = self.run
        for name in [name for name in run.tensors if name.startswith(PREFIX)]:
            del run.tensors[name]
        self.assigned = assigned
        count = count or int(assigned.max()) + 1
        models = {f"{count:,} global models": 4 * run.layout.size * count}
        check_fits(run.device, models, "take a smaller model, or fewer of them")
        run.server.grow(count)
        facts = {f: getattr(run, f) for f in RunParts.__dataclass_fields__}
        self.parts, self.clusters = list[ClusterParts](), list[Algorithm]()
        for number in range(len(run.server.data)):
            own = {"server": run.server.part(slice(number, number + 1)), "number": number}
            own["members"] = np.flatnonzero(assigned == number)
            self.parts.append(ClusterParts(**facts | own))
            self.clusters.append(copy.deepcopy(self.inner))
            self.clusters[-1].start(self.parts[-1])

    @property
    def count(self) -> int:
        """How many models there are now."""
        return len(self.parts)

    def cluster_of(self, client: int) -> int:
        return int(self.assigned[client])

    def clusters_of(self, clients: np.ndarray) -> np.ndarray:  # [n] -> int64 [n]
        return np.array([self.cluster_of(client) for client in clients.tolist()], dtype=np.int64)

    def model_of(self, client: int) -> Arena:
        """The model of the client's cluster, [1, size]."""
        return self.parts[self.cluster_of(client)].server

    def before_round(self, run: RunParts, t: int, clients: np.ndarray) -> None:
        self.cohort, self.trained = clients, self.clusters_of(clients)
        for number in np.unique(self.trained).tolist():
            own = clients[self.trained == number]
            self.clusters[number].before_round(self.parts[number], t, own)

    def begin(self, client: LocalClient) -> None:
        client.server = self.model_of(client.id)
        client.row.data.copy_(client.server.data)
        client.row.integers.copy_(client.server.integers)
        self.clusters[self.cluster_of(client.id)].begin(client)

    def step_terms(self, client: LocalClient) -> StepTerms:
        return self.clusters[self.cluster_of(client.id)].step_terms(client)

    def loss(self, client: LocalClient, x: Tensor, y: Tensor, z: Tensor, logits: Tensor) -> Tensor:
        return self.clusters[self.cluster_of(client.id)].loss(client, x, y, z, logits)

    def after_batch(self, client: LocalClient) -> None:
        self.clusters[self.cluster_of(client.id)].after_batch(client)

    def end(self, client: LocalClient) -> None:
        self.clusters[self.cluster_of(client.id)].end(client)

    def prior(self, sizes: Tensor) -> Tensor:
        return self.inner.prior(sizes)

    def finish(self, client: int, row: Tensor, origin: Tensor) -> None:
        origin = self.model_of(client).data[0]
        self.clusters[self.cluster_of(client)].finish(client, row, origin)

    def update(self, server: Arena, cohort: Arena, weights: Tensor) -> None:
        for number in np.unique(self.trained).tolist():
            at = torch.from_numpy(np.flatnonzero(self.trained == number))
            own = weights[at.to(weights.device)]
            rows = cohort.part(at.to(cohort.data.device))
            self.clusters[number].update(self.parts[number].server, rows, own / own.sum())

    def place_new(self, clients: Sequence[int]) -> list[int] | None:
        """The cluster of each of `clients`, numbered as those that never train; None: unknown."""
        return None if self.placed is None else [self.placed[client] for client in clients]

    def has_own(self, client: int) -> bool:
        return True

    def personalise(self, client: int, row: Tensor) -> None:
        row.copy_(self.model_of(client).data[0])
        self.clusters[self.cluster_of(client)].personalise(client, row)
