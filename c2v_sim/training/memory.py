"""How much memory a run takes, found out before it starts.

A run that cannot fit is refused with the sum that does not fit, instead of being killed by the
system in round 7. Client rows (FedDyn, MOON) may go to a file; what trains must be in memory.
"""

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from torch import Tensor, nn

from c2v_sim.system import ranks
from c2v_sim.system.machine import free_memory
from c2v_sim.system.text import in_bytes
from c2v_sim.training.client_rows import Budget, ClientRows

SHARE = 0.85  # of the memory that is free now; the rest is for activations and the system


def lane_bytes(
    model: nn.Module, forward: Callable[[], Tensor], samples: int, batch_size: int
) -> int:
    """What a lane takes on a GPU while it trains `model`, from `forward` on a few `samples`.

    Four rows (parameters, gradients, momentum, one of the algorithm's) and, twice, what autograd
    keeps of a batch for the backward pass: once itself, once the gradients and workspaces of it.
    """
    tensors = [*model.parameters(), *model.buffers()]
    own = {t.untyped_storage().data_ptr() for t in tensors}
    kept: dict[int, int] = {}  # address -> bytes

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    training = model.training
    model.eval()  # one sample would be too few for batch norm
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = forward()  # holds what was kept, so that no address comes twice
    model.train(training)
    del out
    row = sum(t.numel() * t.element_size() for t in tensors)
    return 4 * row + 2 * sum(kept.values()) * batch_size // samples


REMEDY = "take a smaller model, a lower participation or fewer lanes"


def check_fits(device: torch.device, parts: dict[str, int], remedy: str = REMEDY) -> None:
    """Refuse a run whose `parts` (what -> bytes) together exceed the free memory."""
    free, total = free_memory(device), sum(parts.values())
    if total > SHARE * free:
        listed = ", ".join(f"{what} {in_bytes(size)}" for what, size in parts.items() if size)
        raise ValueError(
            f"this run needs {in_bytes(total)} on {device} ({listed}), and {in_bytes(SHARE * free)}"
            f" of {in_bytes(free)} free may be used; {remedy}"
        )


def row_budget(device: torch.device, limit_gb: float, folder: Path | None) -> Budget:
    """What client rows may take: half of what is free, and at most `limit_gb` GB where given.

    The ranks of a host share its memory.
    """
    on_device = free_memory(device) if device.type == "cuda" else 0
    host = psutil.virtual_memory().available // ranks.local_size()
    budget = Budget(on_device // 2, host // 2, folder)
    if limit_gb:
        limit = int(limit_gb * 1e9)
        on_device = min(budget.device, limit)
        budget = Budget(on_device, min(budget.host, limit - on_device), folder)
    return budget


@dataclass(frozen=True)
class RowPlan:
    """Where the rows of all clients that can take part will go, in bytes."""

    per_client: int
    participants: int
    device: int
    host: int
    file: int

    @property
    def sentence(self) -> str:
        total = self.per_client * self.participants
        if not total:
            return "no state is kept for clients"
        text = f"{in_bytes(self.per_client)} of state per client, {in_bytes(total)} for "
        text += f"{self.participants} clients"
        places = {"on the device": self.device, "in host memory": self.host}
        fitting = [
            f"{min(self.participants, size // self.per_client)} fit {where}"
            for where, size in places.items()
            if size >= self.per_client
        ]
        text += ": " + ", ".join(fitting or ["none fit in memory"])
        if self.file:
            text += f", {in_bytes(self.file)} go to a memory-mapped file (slower)"
        return text


def plan_rows(rows: list[ClientRows], budget: Budget, participants: int) -> RowPlan:
    """Where the rows will go; refused if neither memory nor the disk can hold them."""
    per_client = sum(r.row_bytes for r in rows)
    total = per_client * participants
    fitting = (
        (budget.device // per_client + budget.host // per_client) if per_client else participants
    )
    file = max(0, participants - fitting) * per_client  # a row is never split
    folder = budget.folder or Path(tempfile.gettempdir())
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if file > SHARE * free:
        raise ValueError(
            f"the state of {participants} clients needs {in_bytes(total)} "
            f"({in_bytes(per_client)} each): {in_bytes(budget.device + budget.host)} fit in memory "
            f"and {folder} has {in_bytes(free)} free for the rest; take a smaller model, fewer "
            "clients or rounds, or --state-dtype bfloat16"
        )
    return RowPlan(per_client, participants, budget.device, budget.host, file)
