"""The round loop: sample a cohort, train it, aggregate, evaluate, record.

    simulator = Simulator(federation, config)
    for record in simulator.rounds():
        print(record.round, record.accuracy)

Embedding projects pass their own module: Simulator(federation, config, model=my_module).
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from c2v_sim.aggregation import ALGORITHMS, data_shares
from c2v_sim.arena import Arena, layout_of
from c2v_sim.cohort import Interrupted, LocalTraining, train_cohort
from c2v_sim.config import RunConfig
from c2v_sim.determinism import deterministic
from c2v_sim.evaluation import Accuracy, accuracy, correct
from c2v_sim.federation import Federation
from c2v_sim.lanes import Lanes, lane_count
from c2v_sim.models import build_model, check_model
from c2v_sim.optimisers import Sgd
from c2v_sim.resident import ResidentData
from c2v_sim.sampling import cohort_size, uniform


@dataclass(frozen=True)
class RoundRecord:
    """What happened in one round; accuracies are None in a round without evaluation."""

    dataset: str  # as it must be named, stand-ins included
    round: int
    cohort: list[int]
    weights: list[float]
    train_loss: float
    accuracy: float | None  # the paper's measure: mean over all clients
    accuracy_weighted: float | None
    accuracy_worst10: float | None
    accuracy_global: float | None
    accuracy_domains: list[float] | None
    seconds: dict[str, float]  # train, aggregate, evaluate


@dataclass
class Result:
    """All records of a run, and the best and last accuracy among them."""

    records: list[RoundRecord] = field(default_factory=list)

    @property
    def evaluated(self) -> list[RoundRecord]:
        return [r for r in self.records if r.accuracy is not None]

    @property
    def best(self) -> RoundRecord:
        return max(self.evaluated, key=lambda r: r.accuracy or 0.0)

    @property
    def final(self) -> RoundRecord:
        return self.evaluated[-1]


def choose_device(name: str) -> torch.device:
    """The torch device for `auto`, `cpu` or `cuda`."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda: torch sees no CUDA device here; use --device cpu or auto")
    return torch.device(name)


class Simulator:
    """One federated run: the global model, its clients' rows, and the loop over rounds."""

    def __init__(
        self,
        federation: Federation,
        config: RunConfig | None = None,
        *,
        model: nn.Module | None = None,
    ) -> None:
        """`config.clients`, dataset and partition fields are taken from `federation` instead."""
        self.federation, self.config = federation, config or RunConfig()
        config, dataset, partition = self.config, federation.dataset, federation.partition
        self.device = choose_device(config.device)
        if model is None:
            shape = tuple(dataset.x_train.shape[1:])
            model = build_model(
                config.model,
                classes=dataset.classes,
                input_shape=shape,
                norm=config.norm,
                seed=config.seed,
            )
        check_model(model)
        self.layout = layout_of(model)
        self.cohort_size = cohort_size(config.participation, partition.clients)
        self.server = Arena(self.layout, 1, self.device)  # row 0: the global model
        self.server.read(model, 0)
        self.cohort = Arena(self.layout, self.cohort_size, self.device)
        lanes = min(lane_count(config.lanes, self.device), self.cohort_size)
        self.stop = threading.Event()  # set from anywhere: training ends after the steps in flight
        self.lanes = Lanes(model, self.layout, lanes, self.device, self.stop)
        scale = (dataset.mean, dataset.std, self.device)
        self.train_data = ResidentData(dataset.x_train, dataset.y_train, *scale)
        self.test_data = ResidentData(dataset.x_test, dataset.y_test, *scale)
        self.how = LocalTraining(
            epochs=config.local_epochs,
            batch_size=config.batch_size,
            optimiser=Sgd(config.lr, config.momentum, config.weight_decay),
            seed=config.seed,
            augment=config.augment == "crop-flip",
        )
        self.round = 0  # rounds finished
        self.client_accuracy: np.ndarray | None = None  # [M], of the latest evaluation

    def rounds(
        self, on_client: Callable[[int], None] = lambda client: None
    ) -> Iterator[RoundRecord]:
        """Train round after round until config.rounds are done, yielding each record.

        `on_client` is called with the id of each client that has finished training. Leaving the
        iterator early keeps the finished rounds; a new call goes on after them. Interrupted is
        raised once `stop` is set; the round in flight then leaves no trace in the state.
        """
        while self.round < self.config.rounds:
            if self.stop.is_set():
                raise Interrupted
            with deterministic(self.config.deterministic, self.device):
                record = self._one_round(self.round + 1, on_client)
            yield record

    def run(self) -> Result:
        """All remaining rounds."""
        return Result(list(self.rounds()))

    def _one_round(self, t: int, on_client: Callable[[int], None]) -> RoundRecord:
        config, partition = self.config, self.federation.partition
        clock = [time.perf_counter()]
        # 1 who
        clients = uniform(config.seed, t, partition.clients, self.cohort_size)
        # 2 local training
        losses = train_cohort(
            self.lanes,
            self.server,
            self.cohort,
            self.train_data,
            partition.train,
            clients,
            self.how,
            t,
            config.algorithm,
            on_client,
        )
        clock.append(time.perf_counter())
        # 3 aggregation
        weights = data_shares(partition.sizes[clients])
        ALGORITHMS[config.algorithm](self.server, self.cohort, weights)
        self.round = t
        clock.append(time.perf_counter())
        # 4 evaluation
        result = self.evaluate() if t % config.eval_every == 0 or t == config.rounds else None
        clock.append(time.perf_counter())
        name = self.federation.dataset.name
        return _record(name, t, clients, weights, losses, result, np.diff(clock))

    def evaluate(self) -> Accuracy:
        """Accuracy of the current global model."""
        with deterministic(self.config.deterministic, self.device):
            marks = correct(self.lanes, self.server, self.test_data)
        result = accuracy(marks, self.federation.partition)
        self.client_accuracy = result.clients
        return result

    def state(self) -> dict[str, Tensor]:
        """What the rest of the run depends on after `round` rounds: the tensors, not copies."""
        return {"server": self.server.data, "integers": self.server.integers}

    def load_state(self, round: int, tensors: dict[str, Tensor]) -> None:
        """Go on after `round` rounds from their `state()`."""
        self.server.data.copy_(tensors["server"])
        self.server.integers.copy_(tensors["integers"])
        self.round = round

    def global_model(self) -> dict[str, Tensor]:
        """The global model's tensors by name, on the CPU: a state_dict for the model's class."""
        return self.server.state_dict(0)

    def close(self) -> None:
        """Stop the lanes' threads."""
        self.lanes.close()


def _record(
    dataset: str,
    t: int,
    clients: np.ndarray,
    weights: Tensor,
    losses: Tensor,
    result: Accuracy | None,
    seconds: np.ndarray,
) -> RoundRecord:
    stages = ("train", "aggregate", "evaluate")
    return RoundRecord(
        dataset=dataset,
        round=t,
        cohort=clients.tolist(),
        weights=[round(w, 9) for w in weights.tolist()],
        train_loss=losses.mean().item(),
        accuracy=result.mean if result else None,
        accuracy_weighted=result.weighted if result else None,
        accuracy_worst10=result.worst10 if result else None,
        accuracy_global=result.whole if result else None,
        accuracy_domains=list(result.domains) if result and result.domains else None,
        seconds={name: round(float(s), 4) for name, s in zip(stages, seconds, strict=True)},
    )
