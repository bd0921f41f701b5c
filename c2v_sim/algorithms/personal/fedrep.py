"""FedRep: every client has a classifier of its own on shared features (Collins et al., 2021).

    local start   w, with the classifier of the client's last turn
    local steps   the first `head` of them train the classifier alone, the others all but it
    w = sum_i p_i w_i
    evaluation    of each client: w with its own classifier

The server averages the classifiers too, for clients that have not taken part yet. What is not
trained in a step has a gradient of zero; weight decay acts on everything. A row of the classifier's
size for every client.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from c2v_sim.algorithms.fedavg import Algorithm
from c2v_sim.algorithms.personal.mixture import check_features, put, taken
from c2v_sim.algorithms.run_parts import RunParts
from c2v_sim.training.client_rows import ClientRows
from c2v_sim.training.local_client import LocalClient


@dataclass
class FedRep(Algorithm):
    head: float = 0.8  # share of the steps
    name = "fedrep"
    capturable = False  # steps are of two kinds

    def start(self, run: RunParts) -> None:
        self.run, self.slots = run, check_features(run, self.name)
        self.heads = run.client_rows("head", sum(s.shape.numel() for s in self.slots))

    @property
    def personal(self) -> ClientRows:
        return self.heads

    def begin(self, client: LocalClient) -> None:
        self.personalise(client.id, client.row.data[0])
        client.memory("left", 1).fill_(self.head_steps(client.samples))

    def head_steps(self, samples: int) -> int:
        return round(self.head * self.run.local.epochs * len(self.run.batches(samples)))

    def loss(self, client: LocalClient, x: Tensor, y: Tensor, z: Tensor, logits: Tensor) -> Tensor:
        left, classifier = client.memory("left"), client.module.classifier
        if left.sub_(1).item() >= 0:
            logits = classifier(z.detach())  # type: ignore[operator]
        else:
            fixed = {name: p.detach() for name, p in classifier.named_parameters()}  # type: ignore[union-attr]
            logits = functional_call(classifier, fixed, (z,))  # type: ignore[arg-type]
        return F.cross_entropy(logits, y)

    def personalise(self, client: int, row: Tensor) -> None:
        if client in self.heads:
            own = torch.empty(self.heads.width, device=row.device)
            put(row, self.slots, self.heads.read(client, own))

    def finish(self, client: int, row: Tensor, origin: Tensor) -> None:
        self.heads.write(client, taken(row, self.slots))
