"""The round loop: choose a cohort, train it, aggregate, evaluate, record.

    simulator = Simulator(federation, config)
    for record in simulator.rounds():
        print(record.round, record.accuracy)

Embedding projects pass their own parts: Simulator(federation, config, model=my_module,
algorithm=MyAlgorithm(), sampler=my_policy, index=my_index). What the loop works with is made by
simulator/model.py and simulator/build.py; what lasts from round to round is in simulator/state.py.
"""

import dataclasses
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from c2v_sim.algorithms import Algorithm
from c2v_sim.algorithms.local_regulariser import LocalRegulariser
from c2v_sim.config import RunConfig
from c2v_sim.data.federation import Federation
from c2v_sim.index.client_index import ClientIndex
from c2v_sim.models.split import state_dict_of
from c2v_sim.simulator.build import Own, build_training, resident_data, some_inputs
from c2v_sim.simulator.evaluation import Accuracy
from c2v_sim.simulator.groups import clusters as groups
from c2v_sim.simulator.groups.second import second_training
from c2v_sim.simulator.groups.testing import test_clients
from c2v_sim.simulator.model import assemble
from c2v_sim.simulator.needed_index import needed_index
from c2v_sim.simulator.objective import Regularised
from c2v_sim.simulator.observers import Observer, run_observed
from c2v_sim.simulator.records import Result, RoundRecord, Stopwatch, make_record
from c2v_sim.simulator.state import begin_state
from c2v_sim.simulator.steering import Similarity, Steering, build_steering, used_index
from c2v_sim.system import ranks
from c2v_sim.system.errors import Interrupted
from c2v_sim.system.machine import choose_device, deterministic, keep_freed_memory_once
from c2v_sim.training.aggregation import rows_of, shares
from c2v_sim.training.client_rows import lent
from c2v_sim.training.cohort import OnClient, dealt, train_cohort
from c2v_sim.training.samplers import Sampler
from c2v_sim.training.samplers.sampler import Cohort, choose, finish_round
from c2v_sim.training.sampling import Policy
from c2v_sim.training.stacked import train_stacked


class Simulator:
    """One federated run: the loop over rounds, and the parts that it works with."""

    def __init__(
        self,
        federation: Federation,
        config: RunConfig | None = None,
        *,
        model: nn.Module | None = None,
        algorithm: Algorithm | None = None,
        sampler: Policy | Sampler | None = None,
        index: ClientIndex | None = None,
        scratch: Path | None = None,
        classifier: str | None = None,
        optimizer: Own | None = None,
        keep_memory: bool = True,
    ) -> None:
        """`config.clients`, dataset and partition fields are taken from `federation` instead.

        model, classifier: any module that gives logits, and the name of the part that makes them
        of features, found where it is not named. optimizer: a class of torch.optim, or a function
        that makes one of a list of parameters (slower than the SGD of the config).
        sampler: who trains, instead of `config.sampling`: (seed, round, sizes [M], k) -> k ids, or
        a Sampler, which may keep state and ask for losses.
        index: what the improvements of the config use; without one, it is built before the first
        round, or `use_index` brings it. scratch: folder for client state beyond the memory.
        keep_memory: whether this process may keep freed memory (system/machine.py).
        """
        if keep_memory:
            keep_freed_memory_once()
        self.federation, self.config = federation, config or RunConfig()
        config, dataset = self.config, federation.dataset
        self.algorithm = groups.chosen_algorithm(config, algorithm, federation.partition.clients)
        self.sampler = groups.chosen_sampler(config, sampler, self.algorithm)
        self.device = choose_device(config.device)
        self.stop = threading.Event()  # set it to end `rounds` after the steps in flight
        self.cohort_size = config.cohort_of(federation.partition.clients)
        self.client_accuracy: np.ndarray | None = None  # [M], of the latest evaluation
        self.shared_accuracy: np.ndarray | None = None  # the same by models that are not personal
        self.index = index if config.needs_client_index else None
        width = None if self.index is None else self.index.feature.shape[1]
        self.train_data, self.test_data = resident_data(dataset, self.device)
        sample = some_inputs(self.train_data, 1)
        built = assemble(config, dataset, self.algorithm, model, sample, width, classifier)
        self.model, self.pretrained = built.model, built.pretrained
        self.training = build_training(
            config,
            federation,
            self.train_data,
            built,
            self.cohort_size,
            self.sampler,
            self.stop,
            optimizer,
        )
        self.server, self.lanes = self.training.server, self.training.lanes
        self.layout, self.path = self.server.layout, self.training.path
        self._state = begin_state(
            config,
            federation,
            self.model,
            self.algorithm,
            self.sampler,
            self.training,
            self.train_data,
            scratch,
        )
        self.second = second_training(self.training, self.algorithm)
        self.row_plan = self._state.row_plan  # where the clients' rows will lie
        if self.index is not None:
            self.use_index(self.index)

    @property
    def round(self) -> int:
        """Rounds finished."""
        return self._state.round

    @property
    def steering(self) -> Steering | None:
        return self._state.steering

    @property
    def regulariser(self) -> LocalRegulariser | None:
        """Of case study iii."""
        objective = self.training.objective
        return objective.regulariser if isinstance(objective, Regularised) else None

    def spill_to(self, folder: Path) -> None:
        """Client state beyond the memory goes to `folder` from now on."""
        self._state.parts.budget.folder = folder

    def use_index(self, index: ClientIndex) -> None:
        """Let `index` steer the improvements; it must be of this federation."""
        config = self.config
        if not config.needs_client_index:
            raise ValueError("use_index: the config improves nothing by a client index")
        index.check(self.federation)
        self.index = used_index(config, index)
        if self.regulariser is not None:
            self.regularise_by(self.index.feature.to(self.device).float())
        groups.use_for_models(config, self.index, self.algorithm, self.federation)
        sizes = self.federation.partition.sizes
        self._state.steering = build_steering(
            config, self.index, sizes, self.cohort_size, self.device
        )

    def regularise_by(self, index: Tensor) -> None:
        """Case study iii with the rows of `index` [n, D] from now on."""
        objective = self.training.objective
        if not isinstance(objective, Regularised):
            raise ValueError("regularise_by: the config has no improve = local")
        columns = objective.regulariser.index.shape[1]
        if index.shape[1] != columns:
            raise ValueError(
                f"use_index: the feature part must have {columns} columns "
                f"({self.config.index}), got {index.shape[1]}"
            )
        self.training = dataclasses.replace(self.training, objective=objective.by(index))

    def rounds(self, on_client: OnClient = lambda client: None) -> Iterator[RoundRecord]:
        """Train round after round until config.rounds are done, yielding each record.

        `on_client` is called with the id of each client that has finished training. Leaving the
        iterator early keeps the finished rounds; a new call goes on after them. When `stop` is
        set, Interrupted is raised, and the unfinished round leaves no trace.
        """
        if self.config.needs_client_index and self.index is None:
            self.use_index(needed_index(self.federation, self.config, self.stop))
        while self.round < self.config.rounds:
            if ranks.any_of(self.stop.is_set()):
                raise Interrupted
            with deterministic(self.config.deterministic, self.device):
                record = self._one_round(self.round + 1, on_client)
            yield record

    def run(self, observers: Iterable[Observer] = ()) -> Result:
        """All remaining rounds; `observers` are told of each (simulator/observers.py)."""
        return run_observed(self, observers)

    def _one_round(self, t: int, on_client: OnClient) -> RoundRecord:
        clock = Stopwatch()
        with clock("sample"):
            chosen = self._choose(t)
            clients = chosen.clients
            similarity = self.steering.similarity_to(clients) if self.steering else None
        with clock("train"):
            self.algorithm.before_round(self._state.parts, t, clients)
            weights = self._weights(chosen, similarity)
            losses = self._train(t, clients, weights, on_client)
        with clock("aggregate"):
            finish_round(self.sampler, clients, losses, self.training.cohort, self.server)
            self._aggregate(t, clients, weights, similarity)
        with clock("evaluate"):
            due = self.config.evaluates(t) and self.federation.tested
            result = self.evaluate() if due else None
        return make_record(
            dataset=self.federation.dataset.name,
            t=t,
            clients=clients,
            weights=weights,
            losses=losses,
            accuracy=result,
            tested=self.algorithm.tested,
            clusters=groups.cohort_clusters(self.algorithm),
            similarity=similarity,
            seconds=clock.seconds,
        )

    def _choose(self, t: int) -> Cohort:
        if self.steering and "sampling" in self.steering.improve:
            return Cohort(self.steering.cohort(t))
        sizes = self.federation.partition.sizes
        return choose(self.sampler, self.config.seed, t, sizes, self.cohort_size)

    def _train(self, t: int, clients: np.ndarray, weights: Tensor, on_client: OnClient) -> Tensor:
        """The cohort's rows, or their sum with `weights`; its mean losses [k]."""
        trainers = dealt([len(self.training.samples[client]) for client in clients])
        with lent(self._state.parts.rows.values(), clients.tolist(), trainers):
            if self.path.stacked:
                losses = train_stacked(self.training, clients, t, on_client)
            else:
                losses = train_cohort(self.training, clients, t, on_client, weights)
            if self.second is not None:
                train_cohort(self.second, clients, t)
        return losses

    def _weights(self, chosen: Cohort, similarity: Similarity | None) -> Tensor:
        """The cohort's aggregation weights, float64 [k]."""
        clients, times = chosen
        sizes = torch.from_numpy(self.federation.partition.sizes[clients])
        prior = self.algorithm.prior(sizes) if times is None else torch.from_numpy(times)
        if self.steering and similarity and "aggregation" in self.steering.improve:
            return self.steering.weights(clients, similarity.history, prior)
        return shares(prior)

    def _aggregate(
        self, t: int, clients: np.ndarray, weights: Tensor, similarity: Similarity | None
    ) -> None:
        """The trained rows become the state after round `t`: this must not be interrupted."""
        server, cohort, classifiers = self.server, self.training.cohort, self._state.classifiers
        for row, client in rows_of(cohort, clients.tolist()):
            self.algorithm.finish(client, row, server.data[0])
            if classifiers:
                classifiers.keep(client, row)
        self.algorithm.update(server, cohort, weights)
        if classifiers:
            self.regularise_by(classifiers.stacked())
        if self.steering and similarity:
            self.steering.finish(t, clients, *similarity)
        self._state.round = t

    def evaluate(self) -> Accuracy:
        """Accuracy of the current models: `algorithm.tested` says of which."""
        with deterministic(self.config.deterministic, self.device):
            result = test_clients(self.training, self.test_data, self.federation, self.algorithm)
        self.client_accuracy, self.shared_accuracy = result.clients, result.shared
        return result

    def global_model(self, cluster: int = 0) -> dict[str, Tensor]:
        """The global model's tensors by name, on the CPU: a state_dict for the model's class; of
        several, that of `cluster`."""
        return state_dict_of(self.model, self.server.state_dict(cluster))

    def state(self) -> dict[str, Tensor]:
        """Everything that the rest of the run depends on after `round` finished rounds.

        Where several ranks share the run, all of them ask for it, and rank 0 has all of it.
        """
        return self._state.tensors()

    def check_state(self, tensors: dict[str, Tensor]) -> None:
        """KeyError where `tensors` lacks one that `load_state` needs."""
        self._state.check(tensors)

    def load_state(self, t: int, tensors: dict[str, Tensor]) -> None:
        """Put back what `state` gave after `t` rounds; the index must be there already.

        Where several ranks share the run, all of them call this; the tensors are those of rank 0.
        """
        if self.config.needs_client_index and self.index is None:
            raise ValueError("load_state: bring the client index first (use_index)")
        self._state.load(t, tensors)
        if self._state.classifiers:
            self.regularise_by(self._state.classifiers.stacked())

    def close(self) -> None:
        """Stop the lanes' threads."""
        self.lanes.close()
