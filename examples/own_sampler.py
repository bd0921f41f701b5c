"""A sampling policy of your own: power-of-choice (Cho et al., 2020), without touching the package.

    candidates   d clients, drawn without replacement, proportional to their sizes
    cohort       the k candidates on whose training data the global model has the largest loss

A policy is anything that can be called with (seed, round, sizes [M], k) and answers with k client
ids. Draw from (seed, round) alone, and a run that is resumed chooses the same clients.

    python examples/own_sampler.py
"""

import copy

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from c2v_sim import Federation, RunConfig, Simulator
from c2v_sim.models import logits
from c2v_sim.training.sampling import by_size


class PowerOfChoice:
    def __init__(self, candidates):
        self.candidates = candidates
        self.simulator = None  # the run it chooses for; set once that exists

    def __call__(self, seed, t, sizes, k):
        drawn = by_size(seed, t, sizes, max(k, self.candidates))
        model = copy.deepcopy(self.simulator.model).to(self.simulator.device).eval()
        model.load_state_dict(self.simulator.global_model())
        losses = [self.loss(model, client) for client in drawn]
        return drawn[np.argsort(losses)[-k:]]

    @torch.no_grad()
    def loss(self, model, client):
        samples = self.simulator.federation.partition.train[client]
        x, y = self.simulator.train_data.batch(torch.from_numpy(samples))
        return cross_entropy(logits(model, x), y).item()


def toy_federation(clients=40, samples=50, seed=0) -> Federation:
    """Two classes; for every tenth client the decision hangs on another feature."""
    g = torch.Generator().manual_seed(seed)
    owner = torch.arange(clients).repeat_interleave(samples)
    x = torch.randn(len(owner), 8, generator=g)
    rare = owner % 10 == 0
    x[:, 7] = torch.where(rare, 2.0, 0.0)  # which a model can see
    y = (torch.where(rare, x[:, 1], x[:, 0]) > 0).long()
    return Federation.from_arrays(x, y, owner, seed=seed)


def main() -> None:
    config = RunConfig(model="mlp", rounds=40, participation=0.1, lr=0.1, batch_size=16)
    for name, sampler in (("uniform", None), ("power-of-choice", PowerOfChoice(candidates=20))):
        simulator = Simulator(toy_federation(), config, sampler=sampler)
        if sampler is not None:
            sampler.simulator = simulator
        records = list(simulator.rounds())
        simulator.close()
        rare = np.mean([client % 10 == 0 for r in records for client in r.cohort])
        worst = np.mean([r.accuracy_worst10 for r in records[-10:]])
        print(
            f"{name}: rare clients are {rare:.0%} of the cohorts, accuracy of the worst tenth "
            f"{worst:.3f} in the last ten rounds"
        )


if __name__ == "__main__":
    main()
