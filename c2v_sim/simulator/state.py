"""What lasts from round to round: all that the rest of a run depends on.

    server, integers                    the global model
    last, H, scores                     of simulator/steering.py, where an index steers
    algorithm.NAME                      tensors that the algorithm keeps on the server
    client.NAME.ids, client.NAME.rows.0 …   rows that it, or the classifier index, keeps per client

The names of what a sampler keeps begin with `sampler.` there.

These are the names of the tensors in a checkpoint.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from c2v_sim.algorithms import Algorithm
from c2v_sim.algorithms.run_parts import RunParts
from c2v_sim.config import RunConfig
from c2v_sim.data.federation import Federation
from c2v_sim.data.resident import ResidentData
from c2v_sim.simulator.classifier_index import ClassifierIndex, classifier_width
from c2v_sim.simulator.objective import Regularised
from c2v_sim.simulator.steering import Steering
from c2v_sim.system import ranks
from c2v_sim.training.local_training import CohortTraining
from c2v_sim.training.memory import RowPlan, plan_rows, row_budget
from c2v_sim.training.samplers import Sampler

STATE_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass
class RunState:
    """The state after `round` finished rounds."""

    parts: RunParts  # the global model, the algorithm's tensors and the clients' rows
    classifiers: ClassifierIndex | None  # whose rows are among them
    row_plan: RowPlan
    steering: Steering | None = None  # brought by the client index
    round: int = 0

    def tensors(self) -> dict[str, Tensor]:
        """By name. Views, not copies: client rows can be large."""
        tensors = self._of_server()
        for name, rows in self.parts.rows.items():
            tensors |= {f"client.{name}.{part}": t for part, t in rows.state().items()}
        return tensors

    def _of_server(self) -> dict[str, Tensor]:
        """All but the clients' rows, which every rank has whole."""
        server = self.parts.server
        tensors = {"server": server.data, "integers": server.integers}
        tensors |= self.steering.state() if self.steering else {}
        return tensors | {f"algorithm.{name}": t for name, t in self.parts.tensors.items()}

    def check(self, tensors: dict[str, Tensor]) -> None:
        """KeyError where `tensors` lacks one that `load` needs."""
        for name in (*self._of_server(), *(f"client.{name}.ids" for name in self.parts.rows)):
            tensors[name]

    def load(self, t: int, tensors: dict[str, Tensor]) -> None:
        """Put back what `tensors` gave after round `t`, which rank 0 has."""
        for name, tensor in self._of_server().items():
            if ranks.is_first():
                tensor.copy_(self._padded(tensors[name], tensor.shape))
            ranks.share((tensor, 0))
        for name, rows in self.parts.rows.items():
            prefix = f"client.{name}."
            own = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
            whole = {k: v if k == "ids" else self._padded(v, (rows.width,)) for k, v in own.items()}
            rows.load_state(whole)
        self.round = t

    def _padded(self, tensor: Tensor, shape: Sequence[int]) -> Tensor:
        """Rows of a checkpoint that was written when they had no padding get theirs."""
        return self.parts.layout.spread(tensor, shape[-1]) if tensor.dim() else tensor


def begin_state(
    config: RunConfig,
    federation: Federation,
    model: nn.Module,
    algorithm: Algorithm,
    sampler: Sampler,
    training: CohortTraining,
    data: ResidentData,
    scratch: Path | None,
) -> RunState:
    """The state before the first round; refused where its rows fit neither memory nor disk."""
    cohort = config.cohort_of(federation.partition.clients)
    budget = row_budget(data.device, config.state_memory, scratch)
    parts = RunParts(
        federation=federation,
        model=model,
        server=training.server,
        lanes=training.lanes,
        train_data=data,
        local=training.local,
        budget=budget,
        cohort_size=cohort,
        row_dtype=STATE_DTYPES[config.state_dtype],
    )
    algorithm.start(parts)
    sampler.start(parts)
    classifiers = None
    if isinstance(training.objective, Regularised) and training.objective.index_grows:
        rows = parts.client_rows("classifier", classifier_width(model))
        classifiers = ClassifierIndex(model, parts.layout, rows)
    participants = min(federation.partition.clients, config.rounds * cohort)
    participants = math.ceil(participants / ranks.size())  # whose rows lie here
    return RunState(parts, classifiers, plan_rows(list(parts.rows.values()), budget, participants))
