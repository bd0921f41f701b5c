"""client_scores against torch: bound by one read of both indices, 512 + 512 numbers per client.

`eager` is what the formula says with raw rows (normalise, then two matrix-vector products);
`unit rows` is the best eager code when unit rows were stored beforehand.
"""

import pytest
import torch
from torch.nn.functional import normalize

from c2v_sim.ops import client_scores

SIZE = 512


@pytest.mark.parametrize(
    ("clients", "dtype"),
    [(100, "float32"), (1000, "float32"), (10_000, "float32"), (100_000, "float32"),
     (100_000, "bfloat16"), (100_000, "float16"), (1_000_000, "bfloat16")],
)  # fmt: skip
def test_client_scores(compare, clients, dtype):
    g = torch.Generator().manual_seed(0)
    storage = getattr(torch, dtype)
    features, labels = (torch.empty(clients, SIZE, dtype=storage) for _ in range(2))
    for index in (features, labels):
        for part in index.split(10_000):
            part.copy_(torch.randn(part.shape, generator=g))
    cohort = torch.randperm(clients, generator=g)[: clients // 10].sort().values
    sizes = torch.randint(10, 500, (clients,), generator=g)
    omega = (sizes[cohort] / sizes[cohort].sum()).float()

    def mv(unit):
        return unit @ (omega.to(unit.dtype) @ unit[cohort])

    baselines = {"eager": lambda: (mv(normalize(features)) + mv(normalize(labels))) / 2}
    if clients <= 100_000:  # the copies of a million clients' unit rows do not pay
        unit_f, unit_l = normalize(features), normalize(labels)
        baselines["unit rows"] = lambda: (mv(unit_f) + mv(unit_l)) / 2
    else:
        baselines = {}
    compare(
        lambda: client_scores(features, labels, cohort, sizes),
        baselines,
        bytes=2 * SIZE * storage.itemsize * (clients + len(cohort)),
        read_only=True,
        rounds=5 if clients > 100_000 else 15,
    )
