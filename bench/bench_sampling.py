"""sample_cohort against torch.multinomial (without a reproducible stream) and against sorting.

`noise` is the share that NumPy's generator takes: the floor of a reproducible draw.
"""

import numpy as np
import pytest
import torch

from c2v_sim.ops import sample_cohort


@pytest.mark.parametrize("clients", [100, 10_000, 1_000_000])
def test_sample_cohort(compare, clients):
    generator = np.random.default_rng(0)
    scores, k = torch.from_numpy(generator.random(clients, dtype=np.float32)), clients // 10
    eligible = generator.random(clients) < 0.5

    def by_sorting():
        keys = scores.double().numpy() / 0.1 + generator.gumbel(size=clients)
        return np.sort(np.argsort(np.where(eligible, -keys, np.inf), kind="stable")[:k])

    def multinomial():
        p = (scores / 0.1).masked_fill(~torch.from_numpy(eligible), -torch.inf).softmax(0)
        return torch.multinomial(p, k).sort().values

    compare(
        lambda: sample_cohort(scores, k, 0.1, rng=generator, eligible=eligible),
        {
            "noise": lambda: generator.gumbel(size=clients),
            "sorting": by_sorting,
            "multinomial": multinomial,
        },
    )
