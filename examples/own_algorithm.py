"""An algorithm of your own: MIFA (Gu et al., 2021), without touching the package.

    client        G_i = theta_i - w, kept until the client takes part again        G_i = 0 first
    server        w = w + 1/M sum_i G_i, over all clients, also those that are away

FedAvg follows whoever happens to be there; here everybody's last word counts in every round. The
hooks are described in c2v_sim/algorithms/fedavg.py.

    python examples/own_algorithm.py
"""

import torch

from c2v_sim import Algorithm, Federation, RunConfig, Simulator
from c2v_sim.algorithms import ALGORITHMS


class Mifa(Algorithm):
    name = "mifa"

    def start(self, run):
        self.clients, self.size = run.clients, run.layout.trainable
        self.last = run.client_rows("last update", self.size)  # kept for each client, zeros first
        self.total = run.server_state("total", self.size)  # kept on the server, zeros first

    def finish(self, client, row, origin):
        before = self.last.read(client, torch.empty_like(self.total))
        after = self.last.write(client, (row - origin)[: self.size])
        self.total.add_(after - before)

    def update(self, server, cohort, weights):
        parameters = server.data[0, : self.size]
        there = parameters + self.total / self.clients
        super().update(server, cohort, weights)  # batch-norm statistics are averaged as in FedAvg
        parameters.copy_(there)


def toy_federation(clients=20, samples=60, classes=5, seed=0) -> Federation:
    """Points around one centre per class; every client sees a single class."""
    g = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, 10, generator=g)
    owner = torch.arange(clients).repeat_interleave(samples)
    y = owner % classes
    x = centres[y] + 1.5 * torch.randn(len(y), 10, generator=g)
    return Federation.from_arrays(x, y, owner, seed=seed)


def main() -> None:
    config = RunConfig(model="linear", rounds=30, participation=0.2, lr=0.1, batch_size=16)
    for algorithm in (ALGORITHMS["fedavg"](config), Mifa()):
        simulator = Simulator(toy_federation(), config, algorithm=algorithm)
        accuracies = [record.accuracy or 0.0 for record in simulator.rounds()]
        simulator.close()
        print(f"{algorithm.name}: accuracy {sum(accuracies[-10:]) / 10:.3f} in the last ten rounds")


if __name__ == "__main__":
    main()
