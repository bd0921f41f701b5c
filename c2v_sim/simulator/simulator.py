"""The round loop: sample a cohort, train it, aggregate, evaluate, record.

    simulator = Simulator(federation, config)
    for record in simulator.rounds():
        print(record.round, record.accuracy)

Embedding projects pass their own parts: Simulator(federation, config, model=my_module,
algorithm=MyAlgorithm(), sampler=my_policy, index=my_index).
"""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from c2v_sim.algorithms import ALGORITHMS, Algorithm
from c2v_sim.config import RunConfig, index_settings
from c2v_sim.data.federation import Federation
from c2v_sim.data.resident import ResidentData
from c2v_sim.index.build import obtain_index
from c2v_sim.index.client_index import ClientIndex
from c2v_sim.models import logits
from c2v_sim.simulator.classifier_index import ClassifierIndex
from c2v_sim.simulator.evaluation import Accuracy, accuracy, correct
from c2v_sim.simulator.model import assemble
from c2v_sim.simulator.records import Result, RoundRecord, make_record
from c2v_sim.simulator.steering import Steering
from c2v_sim.system.errors import Interrupted
from c2v_sim.system.machine import choose_device, deterministic
from c2v_sim.training import memory
from c2v_sim.training.aggregation import shares
from c2v_sim.training.arena import Arena, layout_of
from c2v_sim.training.client_rows import ClientRows
from c2v_sim.training.cohort import LocalTraining, batch_bounds, train_cohort
from c2v_sim.training.lanes import Lanes, lane_count
from c2v_sim.training.optimisers import Sgd
from c2v_sim.training.sampling import SAMPLERS, Policy, checked_cohort, cohort_size
from c2v_sim.training.stacked import stackable, train_stacked

STATE_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Simulator:
    """One federated run: the global model, its clients' rows, and the loop over rounds."""

    def __init__(
        self,
        federation: Federation,
        config: RunConfig | None = None,
        *,
        model: nn.Module | None = None,
        algorithm: Algorithm | None = None,
        sampler: Policy | None = None,
        index: ClientIndex | None = None,
        scratch: Path | None = None,
    ) -> None:
        """`config.clients`, dataset and partition fields are taken from `federation` instead.

        sampler: who trains, instead of `config.sampling`: (seed, round, sizes [M], k) -> k ids.
        index: what the improvements of the config use; without one, it is built before the first
        round, or `use_index` brings it. scratch: folder for client state beyond the memory.
        """
        self.federation, self.config = federation, config or RunConfig()
        config, dataset, partition = self.config, federation.dataset, federation.partition
        if sampler is not None and "sampling" in config.improve:
            raise ValueError(
                "Simulator: a sampler and improve = sampling both choose the cohort; leave one out"
            )
        self.sampler = sampler or SAMPLERS[config.sampling]
        self.device = choose_device(config.device)
        self.stop = threading.Event()  # set it to end `rounds` after the steps in flight
        self.algorithm = algorithm or ALGORITHMS[config.algorithm](config)
        self.cohort_size = cohort_size(config.participation, partition.clients)
        scale = (dataset.mean, dataset.std, self.device)
        self.train_data = ResidentData(dataset.x_train, dataset.y_train, *scale)
        self.test_data = ResidentData(dataset.x_test, dataset.y_test, *scale)
        self.index = index if config.needs_client_index else None
        self.steering: Steering | None = None
        sample = self.train_data.batch(torch.zeros(1, dtype=torch.int64, device=self.device))[0]
        width = None if self.index is None else self.index.feature.shape[1]
        whole = assemble(config, dataset, self.algorithm, model, sample.cpu(), width)
        self.model, self.pretrained = whole.model, whole.pretrained
        self.algorithm.regulariser = whole.regulariser
        self.layout = layout_of(self.model)
        lanes = min(lane_count(config.lanes, self.device, self._lane_bytes), self.cohort_size)
        self._check_memory(lanes)
        self.server = Arena(self.layout, 1, self.device)  # row 0: the global model
        self.server.read(self.model, 0)
        self.cohort = Arena(self.layout, self.cohort_size, self.device)
        self.lanes = Lanes(self.model, self.layout, lanes, self.device, self.stop)
        self.how = LocalTraining(
            epochs=config.local_epochs,
            batch_size=config.batch_size,
            optimiser=Sgd(config.lr, config.momentum, config.weight_decay),
            seed=config.seed,
            augment=config.augment == "crop-flip",
        )
        stacked = stackable(self.model, self.how, self.algorithm, self.cohort_size)
        self.train: Callable[..., Tensor] = train_stacked if stacked else train_cohort
        self.round = 0  # rounds finished
        self.client_accuracy: np.ndarray | None = None  # [M], of the latest evaluation
        self._server_state: dict[str, Tensor] = {}
        self._client_rows: dict[str, ClientRows] = {}
        self._budget = memory.row_budget(self.device, config.state_memory, scratch)
        self.algorithm.start(self)
        self.classifiers = self._build_classifier_index()
        participants = min(partition.clients, config.rounds * self.cohort_size)
        rows = list(self._client_rows.values())
        self.row_plan = memory.plan_rows(rows, self._budget, participants)
        if self.index is not None:
            self.use_index(self.index)

    def use_index(self, index: ClientIndex) -> None:
        """Let `index` steer the improvements; it must be of this federation."""
        config = self.config
        if not config.needs_client_index:
            raise ValueError("use_index: the config improves nothing by a client index")
        index.check(self.federation)
        self.index = index if config.index_part == "both" else index.only(config.index_part)
        regulariser = self.algorithm.regulariser
        if regulariser is not None:
            if self.index.feature.shape[1] != regulariser.index.shape[1]:
                raise ValueError(
                    f"use_index: the feature part must have {regulariser.index.shape[1]} columns "
                    f"({config.index}), got {self.index.feature.shape[1]}"
                )
            regulariser.index = self.index.feature.to(self.device)
        self.steering = self._build_steering(self.index)

    def _build_classifier_index(self) -> ClassifierIndex | None:
        regulariser = self.algorithm.regulariser
        if regulariser is None or self.config.index != "local-model-weights":
            return None
        # A recorded step would keep the first index, and this one grows from round to round.
        self.algorithm.capturable = False
        rows = self.client_rows("classifier", regulariser.index.shape[1])
        return ClassifierIndex(self.model, self.layout, rows, regulariser)

    def _build_steering(self, index: ClientIndex) -> Steering | None:
        config, sizes = self.config, self.federation.partition.sizes
        steered = {"sampling", "aggregation"} & set(config.improve)
        if not steered:
            return None
        parts = [getattr(index, name).to(self.device) for name in index.parts]
        feature, label = parts if len(parts) == 2 else (parts[0], None)
        return Steering(
            feature,
            label,
            sizes,
            self.cohort_size,
            steered,
            seed=config.seed,
            tau=config.temperature,
            gamma=config.gamma,
            lambda1=config.lambda1,
        )

    def _lane_bytes(self) -> int:
        x, _ = self.train_data.batch(torch.zeros(2, dtype=torch.int64, device=self.device))
        x = x.cpu()  # where the model still is
        return memory.lane_bytes(
            self.model, lambda: logits(self.model, x), len(x), self.config.batch_size
        )

    def _check_memory(self, lanes: int) -> None:
        row = 4 * self.layout.size
        parts = {
            f"{self.cohort_size} models of the cohort": row * self.cohort_size,
            f"{lanes} lanes": 4 * row * lanes,  # row, gradients, momentum, activations at least
            "the global model": row,
        }
        memory.check_fits(self.device, parts)

    # What algorithms ask for in `start`.

    def server_state(self, name: str, *shape: int) -> Tensor:
        """Zeros that the algorithm changes in place and the checkpoint keeps."""
        self._server_state[name] = torch.zeros(shape, device=self.device)
        return self._server_state[name]

    def client_rows(self, name: str, width: int) -> ClientRows:
        """A row of `width` numbers for every client, kept between its participations."""
        self._client_rows[name] = ClientRows(
            name,
            self.federation.partition.clients,
            width,
            device=self.device,
            budget=self._budget,
            dtype=STATE_DTYPES[self.config.state_dtype],
        )
        return self._client_rows[name]

    def batches(self, samples: int) -> list[tuple[int, int]]:
        """Begin and end of each batch of a client with so many samples."""
        return batch_bounds(samples, self.config.batch_size)

    def rounds(
        self, on_client: Callable[[int], None] = lambda client: None
    ) -> Iterator[RoundRecord]:
        """Train round after round until config.rounds are done, yielding each record.

        `on_client` is called with the id of each client that has finished training. Leaving the
        iterator early keeps the finished rounds; a new call goes on after them. When `stop` is
        set, Interrupted is raised, and the unfinished round leaves no trace.
        """
        if self.config.needs_client_index and self.index is None:
            self.use_index(self._find_index())
        while self.round < self.config.rounds:
            if self.stop.is_set():
                raise Interrupted
            with deterministic(self.config.deterministic, self.device):
                record = self._one_round(self.round + 1, on_client)
            yield record

    def _find_index(self) -> ClientIndex:
        config = self.config
        return obtain_index(
            self.federation,
            index_settings(config),
            file=config.index_file,
            data_dir=config.data_dir,
            stop=self.stop,
        )

    def run(self) -> Result:
        """All remaining rounds."""
        return Result(list(self.rounds()))

    def _one_round(self, t: int, on_client: Callable[[int], None]) -> RoundRecord:
        config, partition = self.config, self.federation.partition
        clock = [time.perf_counter()]
        # 1 who
        clients = self._choose(t)
        scores, history = self.steering.look(clients) if self.steering else (None, None)
        clock.append(time.perf_counter())
        # 2 local training
        self.algorithm.before_round(self, t, clients)
        losses = self.train(
            self.lanes,
            self.server,
            self.cohort,
            self.train_data,
            partition.train,
            clients,
            self.how,
            self.algorithm,
            t,
            on_client,
        )
        clock.append(time.perf_counter())
        # 3 aggregation: from here to the new round number nothing may be interrupted
        weights = self._weights(clients, history)
        self._finish(t, clients, weights)
        if self.steering and scores is not None and history is not None:
            self.steering.finish(t, clients, scores, history)
        self.round = t
        clock.append(time.perf_counter())
        # 4 evaluation
        result = self.evaluate() if t % config.eval_every == 0 or t == config.rounds else None
        clock.append(time.perf_counter())
        name = self.federation.dataset.name
        return make_record(
            name, t, clients, weights, losses, result, np.diff(clock), scores, history
        )

    def _choose(self, t: int) -> np.ndarray:
        """The cohort's ids, ascending."""
        if self.steering and "sampling" in self.steering.improve:
            return self.steering.cohort(t)
        sizes = self.federation.partition.sizes
        chosen = self.sampler(self.config.seed, t, sizes, self.cohort_size)
        return checked_cohort(chosen, t, len(sizes), self.cohort_size)

    def _weights(self, clients: np.ndarray, history: Tensor | None) -> Tensor:
        """The cohort's aggregation weights, float64 [k]."""
        prior = self.algorithm.prior(torch.from_numpy(self.federation.partition.sizes[clients]))
        if self.steering and "aggregation" in self.steering.improve:
            assert history is not None
            return self.steering.weights(clients, history, prior)
        return shares(prior)

    def _finish(self, t: int, clients: np.ndarray, weights: Tensor) -> None:
        """The trained rows become the clients' and the server's new state."""
        origin = self.server.data[0]
        for row, client in enumerate(clients.tolist()):
            self.algorithm.finish(client, self.cohort.data[row], origin)
            if self.classifiers:
                self.classifiers.keep(client, self.cohort.data[row])
        self.algorithm.update(self.server, self.cohort, weights)
        if self.classifiers:
            self.classifiers.restack()

    def evaluate(self) -> Accuracy:
        """Accuracy of the current global model."""
        with deterministic(self.config.deterministic, self.device):
            marks = correct(self.lanes, self.server, self.test_data)
        result = accuracy(marks, self.federation.partition)
        self.client_accuracy = result.clients
        return result

    def global_model(self) -> dict[str, Tensor]:
        """The global model's tensors by name, on the CPU: a state_dict for the model's class."""
        return self.server.state_dict(0)

    def state(self) -> dict[str, Tensor]:
        """Everything that the rest of the run depends on after `round` finished rounds.

        Views, not copies: client rows can be large.
        """
        tensors = {"server": self.server.data, "integers": self.server.integers}
        tensors |= self.steering.state() if self.steering else {}
        tensors |= {f"algorithm.{name}": t for name, t in self._server_state.items()}
        for name, rows in self._client_rows.items():
            tensors |= {f"client.{name}.{part}": t for part, t in rows.state().items()}
        return tensors

    def load_state(self, round: int, tensors: dict[str, Tensor]) -> None:
        """Put back what `state` gave after `round` rounds; the index must be there already."""
        if self.config.needs_client_index and self.index is None:
            raise ValueError("load_state: bring the client index first (use_index)")
        for name, tensor in self.state().items():
            if not name.startswith("client."):
                tensor.copy_(tensors[name])
        for name, rows in self._client_rows.items():
            prefix = f"client.{name}."
            own = {k.removeprefix(prefix): t for k, t in tensors.items() if k.startswith(prefix)}
            rows.load_state(own)
        if self.classifiers:
            self.classifiers.restack()
        self.round = round

    def close(self) -> None:
        """Stop the lanes' threads."""
        self.lanes.close()
