"""Case study v: every client's classifier is a mixture of what like clients learned.

    d_j  = classifier of client j after its last turn - that of the model it began from
    a_ij = N_j exp(A_ij / tau) / sum_k N_k exp(A_ik / tau)        over all that have taken part
    model of client i: the features of its global model, classifier g + sum_j a_ij d_j

A is the similarity of the client index. What is mixed are changes, not classifiers: those that were
learned with older features would not fit those of now, while g does. A_ii = 1 is the largest, so a
client that has taken part counts most for itself, the more so the smaller tau is; one that has not
is given what its likes have learned, and so is a client that never trains. Training is that of
`inner`, to the bit: nothing here flows back. A row of the classifier's size for every client.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from c2v_sim.algorithms.clusters.in_clusters import InClusters
from c2v_sim.algorithms.fedavg import PERSONAL, Algorithm
from c2v_sim.algorithms.fediir import classifier_parameters
from c2v_sim.algorithms.personal.around import Around
from c2v_sim.algorithms.run_parts import RunParts
from c2v_sim.training.arena import Layout, Slot
from c2v_sim.training.client_rows import ClientRows


def classifier_slots(model: nn.Module, layout: Layout) -> list[Slot]:
    """Where the classifier's tensors lie in a row."""
    own = {id(p) for p in classifier_parameters(model)}
    names = {name for name, p in model.named_parameters() if id(p) in own}
    return [slot for slot in layout.parameters if slot.name in names]


def check_features(run: RunParts, name: str) -> list[Slot]:
    """The slots of the classifier; refused where the model has nothing else."""
    slots = classifier_slots(run.model, run.layout)
    if len(slots) == len(run.layout.parameters):
        raise ValueError(
            f"algorithm {name} needs a model with features to share, such as cnn, and "
            f"{type(run.model).__name__} is nothing but a classifier"
        )
    return slots


def taken(row: Tensor, slots: list[Slot]) -> Tensor:
    """The numbers of some tensors of a row, one after another."""
    return torch.cat([slot.view(row).flatten() for slot in slots])


def put(row: Tensor, slots: list[Slot], values: Tensor) -> None:
    """Put back what `taken` gave."""
    for slot, part in zip(slots, values.split([s.shape.numel() for s in slots]), strict=True):
        slot.view(row).copy_(part.view(slot.shape))


class Mixture(Around):
    """`inner` with mixed classifiers in evaluations."""

    def __init__(self, inner: Algorithm, temperature: float) -> None:
        super().__init__(inner)
        self.temperature = temperature
        self.units: list[Tensor] = []  # unit vectors of the index's parts, each [M, D]
        self.new: list[Tensor] = []  # of each client that never trains its similarity [M]

    def start(self, run: RunParts) -> None:
        super().start(run)
        self.run, self.slots = run, classifier_slots(run.model, run.layout)
        width = sum(slot.shape.numel() for slot in self.slots)
        self.changes = run.client_rows("change", width)
        self.log_sizes = torch.from_numpy(run.federation.partition.sizes).double().log()

    def use(self, parts: list[Tensor]) -> None:
        """The parts of the client index from now on, each [M, D]."""
        self.units = [nn.functional.normalize(part.double().cpu(), dim=1) for part in parts]

    @property
    def tested(self) -> str:
        return PERSONAL

    @property
    def personal(self) -> ClientRows | None:
        return self.inner.personal

    def finish(self, client: int, row: Tensor, origin: Tensor) -> None:
        super().finish(client, row, origin)
        if isinstance(self.inner, InClusters):
            origin = self.inner.model_of(client).data[0]
        self.changes.write(client, taken(row, self.slots) - taken(origin, self.slots))

    def has_own(self, client: int) -> bool:
        return True

    def before_test(self, clients: Sequence[int]) -> None:
        """Bring together what is mixed, on every rank."""
        super().before_test(clients)
        rows = self.changes
        self.known = torch.tensor([i for i in range(rows.clients) if i in rows], dtype=torch.int64)
        self.table = torch.empty(len(self.known), rows.width, device=self.run.device)
        for row, client in zip(self.table, self.known.tolist(), strict=True):
            rows.read(client, row)

    def similarity_to_all(self, client: int) -> Tensor:  # float64 [M]
        return torch.stack([unit @ unit[client] for unit in self.units]).mean(0)

    def weights(self, similarity: Tensor) -> Tensor:  # [M] -> [n]
        """a over those that have taken part, float64."""
        logits = similarity[self.known] / self.temperature + self.log_sizes[self.known]
        return torch.softmax(logits, 0)

    def mix(self, row: Tensor, similarity: Tensor) -> None:
        """Change the classifier of `row` [size] for a client of this similarity [M] to all."""
        if len(self.known):
            change = self.weights(similarity).float().to(self.table.device) @ self.table
            put(row, self.slots, taken(row, self.slots) + change)

    def personalise(self, client: int, row: Tensor) -> None:
        self.inner.personalise(client, row)
        self.mix(row, self.similarity_to_all(client))
