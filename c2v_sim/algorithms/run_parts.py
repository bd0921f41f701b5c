"""What an algorithm is given of a run in `start` and `before_round`, and a sampler in `start`.

Tensors that last from round to round are asked of it in `start`; the run saves them by their name
and puts them back.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from c2v_sim.data.federation import Federation
from c2v_sim.data.resident import ResidentData
from c2v_sim.system import ranks
from c2v_sim.training.arena import Arena, Layout
from c2v_sim.training.client_rows import Budget, ClientRows, RankedRows
from c2v_sim.training.cohort import dealt
from c2v_sim.training.lane import Lane
from c2v_sim.training.lanes import Lanes
from c2v_sim.training.local_training import LocalTraining, batch_bounds
from c2v_sim.training.samplers.local_losses import local_losses


@dataclass(frozen=True, eq=False)
class RunParts:
    """The parts of a run that are the same in all rounds, and the state that lasts."""

    federation: Federation
    model: nn.Module  # as it was built; the lanes train copies of it
    server: Arena  # row 0: the global model
    lanes: Lanes
    train_data: ResidentData
    local: LocalTraining
    budget: Budget  # of the clients' rows
    cohort_size: int  # k
    row_dtype: torch.dtype = torch.float32
    members: np.ndarray | None = None  # ids of the clients that share the model; None: all
    tensors: dict[str, Tensor] = field(default_factory=dict)  # those of server_state
    rows: dict[str, ClientRows] = field(default_factory=dict)  # those of client_rows

    @property
    def clients(self) -> int:
        return self.federation.partition.clients

    @property
    def own_sizes(self) -> np.ndarray:
        """The samples of each client that shares the model."""
        sizes = self.federation.partition.sizes
        return sizes if self.members is None else sizes[self.members]

    @property
    def layout(self) -> Layout:
        return self.server.layout

    @property
    def device(self) -> torch.device:
        return self.train_data.device

    def server_state(self, name: str, *shape: int) -> Tensor:
        """Zeros that the algorithm changes in place and the checkpoint keeps."""
        self._check_new(name, self.tensors)
        self.tensors[name] = torch.zeros(shape, device=self.device)
        return self.tensors[name]

    def client_rows(self, name: str, width: int) -> ClientRows:
        """A row of `width` numbers for every client, kept between its participations."""
        self._check_new(name, self.rows)
        kind = ClientRows if ranks.size() == 1 else RankedRows
        self.rows[name] = kind(
            name,
            self.clients,
            width,
            device=self.device,
            budget=self.budget,
            dtype=self.row_dtype,
        )
        return self.rows[name]

    def _check_new(self, name: str, known: Collection[str]) -> None:
        if name in known:
            raise ValueError(
                f"state {name!r} was asked for twice: algorithm and sampler need names of their own"
            )

    def local_losses(self, clients: Sequence[int]) -> np.ndarray:  # [n]
        """The global model's mean loss on the training samples of each of `clients`."""
        samples = self.federation.partition.train
        return local_losses(self.lanes, self.server, self.train_data, samples, clients)

    def of_each(
        self, clients: Sequence[int], work: Callable[[Lane, int], Tensor], *shape: int
    ) -> Tensor:  # [n, *shape]
        """What `work` gives of each of `clients`, of whose position it is told, on the lanes."""
        trainers = dealt([len(self.federation.partition.train[client]) for client in clients])
        mine = [p for p, trainer in enumerate(trainers) if trainer == ranks.rank()]
        out = torch.zeros(len(clients), *shape, device=self.device)
        with ranks.same_fate():
            # What lanes have written may be read when the last of them has finished, not before.
            for position, own in list(self.lanes.run(work, mine)):
                out[position] = own
        return ranks.pick(out, trainers)

    def batches(self, samples: int) -> list[tuple[int, int]]:
        """Begin and end of each batch of a client with so many samples."""
        return batch_bounds(samples, self.local.batch_size)
