"""An algorithm of your own: SCAFFOLD (Karimireddy et al., 2020), without touching the package.

    local step    theta <- theta - lr (grad + c - c_i)
    client        c_i+ = c_i - c + (w - theta_i) / (steps · lr)
    server        w = 1/k sum_i theta_i,   c = c + 1/M sum_i (c_i+ - c_i)         c = c_i = 0 first

A client drifts to its own optimum; the control variates c_i (where client i pulls) and c (where
all pull) cancel that. The hooks are described in c2v_sim/algorithms/fedavg.py.

    python examples/own_algorithm.py
"""

import torch

from c2v_sim import Federation, RunConfig, Simulator
from c2v_sim.algorithms import ALGORITHMS, Algorithm


class Scaffold(Algorithm):
    name = "scaffold"

    def start(self, run):
        self.run, self.size = run, run.layout.trainable
        self.c_i = run.client_rows("c_i", self.size)  # kept for each client, zeros first
        self.c = run.server_state("c", self.size)  # kept on the server, zeros first
        self.change = torch.zeros_like(self.c)  # of c, gathered within a round

    def begin(self, client):
        linear = client.memory("linear", self.size)
        self.c_i.read(client.id, linear).neg_().add_(self.c)

    def step_terms(self, client):
        return {"linear": client.memory("linear")}  # joins every gradient: c - c_i

    def prior(self, sizes):
        return torch.ones_like(sizes)  # a plain mean

    def finish(self, client, row, origin):
        local, samples = self.run.local, self.run.federation.partition.sizes[client]
        steps = local.epochs * len(self.run.batches(samples))
        pull = (origin - row)[: self.size] / (steps * local.optimiser.lr)
        before = self.c_i.read(client, torch.empty_like(self.c))
        after = self.c_i.write(client, before - self.c + pull)
        self.change.add_(after - before)

    def update(self, server, cohort, weights):
        super().update(server, cohort, weights)
        self.c.add_(self.change, alpha=1 / self.run.federation.partition.clients)
        self.change.zero_()


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
    for algorithm in (ALGORITHMS["fedavg"](config), Scaffold()):
        simulator = Simulator(toy_federation(), config, algorithm=algorithm)
        accuracies = [record.accuracy or 0.0 for record in simulator.rounds()]
        simulator.close()
        print(f"{algorithm.name}: accuracy {sum(accuracies[-10:]) / 10:.3f} in the last ten rounds")


if __name__ == "__main__":
    main()
