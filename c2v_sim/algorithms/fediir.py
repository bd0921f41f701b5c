"""FedIIR: classifier gradients alike on all clients.

    G_new = mean over all batches of all cohort clients of grad_g CE at w (eval mode)
    G = e G + (1 - e) G_new                                                 G = 0 in the beginning
    local loss CE + lambda |grad_g CE - G|^2

with g the parameters of the classifier; the penalty is differentiated through. A client's batches
for G_new are its samples in their stored order.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from c2v_sim.algorithms.fedavg import Algorithm, averages_as_given, takes_padding
from c2v_sim.algorithms.run_parts import RunParts
from c2v_sim.training.arena import Arena
from c2v_sim.training.lane import Lane
from c2v_sim.training.local_client import LocalClient


@dataclass
class FedIIR(Algorithm):
    penalty: float = 1e-3  # lambda
    ema: float = 0.95  # e
    name = "fediir"

    def start(self, run: RunParts) -> None:
        width = sum(p.numel() for p in classifier_parameters(run.model))
        self.mean_gradient = run.server_state("mean_gradient", width)  # G after the last round
        self.target = torch.zeros_like(self.mean_gradient)  # G of this round

    def before_round(self, run: RunParts, t: int, clients: np.ndarray) -> None:
        fresh = mean_classifier_gradient(run, clients)
        self.target.copy_(self.ema * self.mean_gradient + (1 - self.ema) * fresh)

    @takes_padding
    def loss(self, client: LocalClient, x: Tensor, y: Tensor, z: Tensor, logits: Tensor) -> Tensor:
        loss = F.cross_entropy(logits, y)
        parameters = classifier_parameters(client.module)
        gradients = torch.autograd.grad(loss, parameters, create_graph=True)
        flat = torch.cat([g.flatten() for g in gradients])
        return loss + self.penalty * (flat - self.target).square().sum()

    @averages_as_given
    def update(self, server: Arena, cohort: Arena, weights: Tensor) -> None:
        super().update(server, cohort, weights)
        self.mean_gradient.copy_(self.target)


def classifier_parameters(module: nn.Module) -> list[Tensor]:
    """Those of the classifier that are trained."""
    own = list(module.classifier.parameters())  # type: ignore[union-attr]
    trained = [p for p in own if p.requires_grad]
    if not trained:
        raise ValueError("the classifier has no parameters that are trained, and its are asked for")
    return trained


def mean_classifier_gradient(run: RunParts, clients: np.ndarray) -> Tensor:
    """grad_g CE of the global model, averaged over all batches of `clients`."""
    samples, data = run.federation.partition.train, run.train_data
    width = sum(p.numel() for p in classifier_parameters(run.model))

    def work(lane: Lane, position: int) -> Tensor:
        ids = lane.upload(samples[clients[position]])
        lane.client.model.bind(run.server.data[0], run.server.integers[0])
        module = lane.client.module.eval()
        parameters = classifier_parameters(module)
        total = torch.zeros(width, device=data.device)
        for begin, end in run.batches(len(ids)):
            x, y = data.batch(ids[begin:end])
            with torch.no_grad():
                z = module.features(x)  # type: ignore[operator]
            loss = F.cross_entropy(module.classifier(z), y)  # type: ignore[operator]
            total += torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])
        return total

    batches = sum(len(run.batches(len(samples[client]))) for client in clients)
    return run.of_each(clients.tolist(), work, width).sum(0) / batches  # in the clients' order
