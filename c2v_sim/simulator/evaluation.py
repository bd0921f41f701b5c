"""Stage 9: accuracy of the global model on every client's test samples.

One batched pass over the test set marks which samples are right; a client's accuracy is then the
mean of its marks, so the cost does not grow with the number of clients. The paper's measure is
the unweighted mean over clients with a non-empty test set.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import torch

from c2v_sim.data.partition import Partition
from c2v_sim.data.resident import ResidentData
from c2v_sim.models import logits
from c2v_sim.system import ranks
from c2v_sim.system.machine import give_back_memory
from c2v_sim.training.arena import Arena
from c2v_sim.training.lanes import Lane, Lanes

BATCH, IMAGES = 500, 100  # samples at once; of images fewer: their activations are large
LARGE, OF_LARGE = 4 << 20, 50  # numbers of a model whose activations are larger still; images
GPU_BATCH = 1000  # fills more of a GPU; 8 lanes of it are a few gigabytes with resnet18
SHARES = 8  # that every lane takes at least, so that none waits long for another
MOST_AT_ONCE = 64  # batches
PROTOCOL = (
    "accuracy = unweighted mean over all clients with test samples of the global model's accuracy "
    "on the client's own test samples; weighted = the same weighted by test samples; worst10 = "
    "mean of the lowest tenth of the clients; global = accuracy on the whole test set"
)


@dataclass(frozen=True)
class Accuracy:
    """Shares in [0, 1]; `clients` is NaN where a client has no test samples."""

    mean: float
    weighted: float
    worst10: float
    whole: float
    clients: np.ndarray  # [M]
    domains: tuple[float, ...] = ()
    shared: np.ndarray | None = None  # [M], by models that are not personal, where others are
    held_out: dict[str, float] = field(default_factory=dict)  # on clients that never train


def batch_of(data: ResidentData, server: Arena) -> int:
    """How many samples are tested at once. On a CPU more images would be about a tenth faster, and
    take more memory than training does."""
    if data.device.type == "cuda":
        return GPU_BATCH
    if data.x.ndim != 4:
        return BATCH
    return OF_LARGE if server.layout.size >= LARGE else IMAGES


def correct(lanes: Lanes, server: Arena, data: ResidentData) -> np.ndarray:
    """For each test sample whether the global model is right, bool [N].

    Lanes take some batches at a time: handing out each of many small ones would cost more than
    the model does.
    """
    batch = batch_of(data, server)
    at_once = math.ceil(len(data) / batch / lanes.count / ranks.size() / SHARES)
    size = batch * min(at_once, MOST_AT_ONCE)
    stretches = math.ceil(len(data) / size)
    table = torch.zeros(stretches, size, dtype=torch.bool, device=data.device)
    marks = table.view(-1)

    def work(lane: Lane, stretch: int) -> None:
        lane.client.model.bind(server.data[0], server.integers[0])
        module = lane.client.module.eval()
        end = min((stretch + 1) * size, len(data))
        with torch.no_grad():
            for begin in range(stretch * size, end, batch):
                ids = torch.arange(begin, min(begin + batch, end), device=data.device)
                x, y = data.batch(ids)
                torch.eq(logits(module, x).argmax(dim=1), y, out=marks[begin : begin + len(ids)])

    give_back_memory()
    with ranks.same_fate():
        for _ in lanes.run(work, range(ranks.rank(), stretches, ranks.size())):
            pass
    give_back_memory()
    testers = [stretch % ranks.size() for stretch in range(stretches)]
    return ranks.pick(table, testers).view(-1)[: len(data)].cpu().numpy()


def accuracy(marks: np.ndarray, partition: Partition, *, of_nobody: bool = True) -> Accuracy:
    """The measures of PROTOCOL from the per-sample marks; of_nobody: samples of no client count."""
    counts, begins = partition.test.sizes, partition.test.offsets
    before = np.zeros(len(partition.test.flat) + 1, dtype=np.int64)  # right ones before each sample
    np.cumsum(marks[partition.test.flat], out=before[1:])
    rights = before[begins[1:]] - before[begins[:-1]]
    tested = counts > 0
    clients = np.where(tested, rights / np.maximum(counts, 1), np.nan)
    values = np.sort(clients[tested])
    lowest = values[: math.ceil(0.1 * len(values))]
    domains: tuple[float, ...] = ()
    if partition.domains is not None:
        of = np.array(partition.domains)
        members = (clients[tested & (of == d)] for d in np.unique(of))
        domains = tuple(float(m.mean()) if len(m) else math.nan for m in members)
    return Accuracy(
        mean=float(values.mean()),
        weighted=float(rights.sum() / counts.sum()),
        worst10=float(lowest.mean()),
        whole=float(marks.mean() if of_nobody else rights.sum() / counts.sum()),
        clients=clients,
        domains=domains,
    )
