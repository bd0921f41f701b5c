"""A sampler of your own: active federated learning (Goetz et al., 2019), outside of the package.

    value    v_i = sqrt(N_i) times the client's mean loss when it last trained
    cohort   k clients without replacement, proportional to exp(v_i / T); the unknown count as the
             most valuable of all

The simplest sampler is a function of (seed, round, sizes [M], k) that answers with k client ids.
One that learns from the rounds is a Sampler: what it keeps it asks of the run, which saves it, so
that a run that is resumed chooses the same clients. The hooks are described in
c2v_sim/training/samplers/sampler.py.

    python examples/own_sampler.py
"""

import numpy as np
import torch

from c2v_sim import Federation, RunConfig, Sampler, Simulator, ops
from c2v_sim.system.seeding import SAMPLING, rng


class Active(Sampler):
    def __init__(self, temperature):
        self.temperature = temperature

    def start(self, run):
        self.loss = run.server_state("sampler.loss", run.clients)  # zeros: not known yet

    def __call__(self, seed, t, sizes, k):
        value = np.sqrt(sizes) * self.loss.cpu().numpy()
        value[value == 0] = value.max()
        draw = rng(seed, SAMPLING, t)
        return ops.sample_cohort(value, k, self.temperature, rng=draw).numpy()

    def finish(self, clients, losses):
        self.loss[torch.from_numpy(clients)] = losses


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
    for name, sampler in (("uniform", None), ("active", Active(temperature=0.3))):
        simulator = Simulator(toy_federation(), config, sampler=sampler)
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
