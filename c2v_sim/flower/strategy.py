"""FedAvg of Flower that samples and weighs by a client index (case studies i and ii).

The cohorts and weights are those of the simulator with the same RunConfig and index: the same
Steering draws and weighs. What is averaged, and how replies are checked and logged, is Flower's.

Only those that answered are a round's cohort: a client that failed has not rested, and the weights
are of the others. Where clients of the index are not connected, the draw is among those that are;
nodes that are not in the index are left out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from logging import INFO, getLogger
from typing import Any

import numpy as np
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.strategy_utils import sample_nodes

from c2v_sim import ops
from c2v_sim.config import RunConfig
from c2v_sim.flower.local_loss import FEATURE, INDEX_KEY
from c2v_sim.index.client_index import ClientIndex
from c2v_sim.simulator.steering import build_steering, used_index
from c2v_sim.system.errors import ConfigError
from c2v_sim.system.seeding import SAMPLING, rng
from c2v_sim.training.aggregation import shares
from c2v_sim.training.sampling import uniform

log = getLogger("flwr").log  # where Flower's own strategies write


@dataclass(frozen=True)
class SteeredRound:
    """Who answered in a round, and how much each counted."""

    round: int
    cohort: list[int]  # numbers of clients, ascending
    weights: list[float]


class Client2VecFedAvg(FedAvg):
    """Of `config`, participation or cohort, seed, improve, tau, gamma and lambda1, as in a run.

    nodes: Flower's node id -> the client's row in `index` (`Sent.nodes`). fedavg: the arguments of
    Flower's FedAvg but fraction_train, which `config.participation` says. `history` has a
    SteeredRound for every round.
    """

    def __init__(
        self, index: ClientIndex, nodes: Mapping[int, int], config: RunConfig, **fedavg: Any
    ) -> None:
        check_nodes(index, nodes)
        if "fraction_train" in fedavg:
            raise ConfigError("Client2VecFedAvg: participation of the config says fraction_train")
        if config.sampling != "uniform":
            raise ConfigError(
                f"Client2VecFedAvg: sampling = {config.sampling} is the simulator's; here an index "
                "chooses the clients, or all are alike"
            )
        if not config.needs_client_index:
            raise ConfigError(
                "Client2VecFedAvg: the config improves nothing by an index; name some of sampling, "
                "aggregation and local in improve, or use Flower's FedAvg"
            )
        if "clustering" in config.improve:
            raise ConfigError(
                "Client2VecFedAvg: improve = clustering is the simulator's; this strategy has one "
                "global model"
            )
        super().__init__(fraction_train=config.participation, **fedavg)
        self.config, self.history = config, list[SteeredRound]()
        self.client_of = dict(nodes)
        self.node_of = {client: node for node, client in nodes.items()}
        self.index, self.sizes = used_index(config, index), index.sizes.numpy()
        self.k = max(config.cohort_of(index.clients), self.min_train_nodes)
        cpu = torch.device("cpu")
        self.steering = build_steering(config, self.index, self.sizes, self.k, cpu)

    def summary(self) -> None:
        super().summary()
        improved = ", ".join(self.config.improve)
        log(INFO, "\t└──> %d clients in the index, which improves %s", len(self.sizes), improved)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """A message for each client of the cohort, with the index where clients need it."""
        _, connected = sample_nodes(grid, self.min_available_nodes, self.k)
        present = np.sort([self.client_of[node] for node in connected if node in self.client_of])
        if len(present) < self.min_train_nodes:
            raise RuntimeError(
                f"Client2VecFedAvg, round {server_round}: {len(present)} of the index's "
                f"{len(self.sizes)} clients are connected, and {self.min_train_nodes} are needed "
                "(min_train_nodes); nodes that came after the index was made are not in it"
            )
        cohort = self._choose(server_round, present)
        log(INFO, "configure_train: clients %s (out of %s)", cohort.tolist(), len(present))
        config["server-round"] = server_round
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        if "local" in self.config.improve:
            record[INDEX_KEY] = ArrayRecord({FEATURE: Array(self.index.feature.numpy())})
        nodes = [self.node_of[client] for client in cohort.tolist()]
        return self._construct_messages(record, nodes, MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Flower's average with the index's weights, in the order of the clients."""
        ordered = sorted(replies, key=lambda r: self.client_of.get(r.metadata.src_node_id, -1))
        metrics: list[MetricRecord] = [
            next(iter(r.content.metric_records.values()), MetricRecord()) for r in answers(ordered)
        ]
        if metrics and all(self.weighted_by_key in own for own in metrics):  # or Flower refuses
            cohort = [self.client_of[r.metadata.src_node_id] for r in answers(ordered)]
            examples = [own[self.weighted_by_key] for own in metrics]
            prior = torch.tensor(examples, dtype=torch.float64)
            weights = self._weigh(server_round, np.array(cohort), prior)
            for own, weight in zip(metrics, weights, strict=True):
                own[self.weighted_by_key] = weight
            self.history.append(SteeredRound(server_round, cohort, weights))
        return super().aggregate_train(server_round, ordered)

    def _choose(self, t: int, present: np.ndarray) -> np.ndarray:  # ascending
        """The cohort of round `t` among the clients that are connected."""
        everyone, k = len(self.sizes), min(self.k, len(present))
        steering, seed = self.steering, self.config.seed
        if steering is None or "sampling" not in steering.improve:
            return present[uniform(seed, t, self.sizes[present], k)]
        if len(present) == everyone:
            return steering.cohort(t)
        waited = (t - steering.last)[present]
        among = ops.sample_cohort(
            steering.scores[present],
            k,
            steering.tau,
            rng=rng(seed, SAMPLING, t),
            eligible=waited > steering.rest,
            rest=waited,
        )
        return present[among.numpy()]

    def _weigh(self, t: int, cohort: np.ndarray, prior: torch.Tensor) -> list[float]:
        """The weights of those that answered; the steering goes on to the next round."""
        if self.steering is None:
            return shares(prior).tolist()
        similarity = self.steering.similarity_to(cohort)
        weights = shares(prior)
        if "aggregation" in self.steering.improve:
            weights = self.steering.weights(cohort, similarity.history, prior)
        self.steering.finish(t, cohort, *similarity)
        return weights.tolist()


def answers(replies: Iterable[Message]) -> list[Message]:
    """Those that are no errors."""
    return [reply for reply in replies if not reply.has_error()]


def check_nodes(index: ClientIndex, nodes: Mapping[int, int]) -> None:
    """Refuse nodes that are not one for each row of the index."""
    if sorted(nodes.values()) != list(range(index.clients)):
        raise ValueError(
            f"Client2VecFedAvg: nodes must name each of the index's rows 0..{index.clients - 1} "
            f"once, got {sorted(nodes.values())[:20]}"
        )
