"""FedBN: batch norm stays at home (Li et al., 2021).

    local start   w, with the batch-norm weights, biases and statistics of the client's last turn
    w = sum_i p_i w_i
    evaluation    of each client: w with its own batch norm

The server averages the batch norms too, for clients that have not taken part yet: these begin, and
are evaluated, with that average, so that the global model can be used as it is. A count such as
num_batches_tracked stays the cohort's largest. A row of the batch norms' numbers for every client.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from c2v_sim.algorithms.fedavg import Algorithm
from c2v_sim.algorithms.run_parts import RunParts
from c2v_sim.training.arena import Slot
from c2v_sim.training.client_rows import ClientRows
from c2v_sim.training.local_client import LocalClient


@dataclass
class FedBN(Algorithm):
    name = "fedbn"

    def start(self, run: RunParts) -> None:
        own = batch_norm_tensors(run.model)
        slots = run.layout.parameters + run.layout.buffers
        self.slots: list[Slot] = [slot for slot in slots if slot.name in own]
        if not self.slots:
            raise ValueError(
                "algorithm fedbn needs a model with batch norm, such as resnet8 with norm = batch, "
                f"and {type(run.model).__name__} has none; it would be fedavg"
            )
        self.norms = run.client_rows("norms", sum(slot.end - slot.offset for slot in self.slots))

    @property
    def personal(self) -> ClientRows:
        return self.norms

    def begin(self, client: LocalClient) -> None:
        self.personalise(client.id, client.row.data[0])

    def personalise(self, client: int, row: Tensor) -> None:
        if client in self.norms:
            own = self.norms.read(client, torch.empty(self.norms.width, device=row.device))
            sizes = [slot.end - slot.offset for slot in self.slots]
            for slot, part in zip(self.slots, own.split(sizes), strict=True):
                row[slot.offset : slot.end].copy_(part)

    def finish(self, client: int, row: Tensor, origin: Tensor) -> None:
        self.norms.write(client, torch.cat([row[s.offset : s.end] for s in self.slots]))


def batch_norm_tensors(model: nn.Module) -> set[str]:
    """The names of the parameters and buffers of batch-norm layers."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        if isinstance(module, _BatchNorm)
        for name in module.state_dict()
    }
