"""Every model, trained through lanes and arena, equals torch.optim on the module itself."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from c2v_sim.algorithms.fedavg import Algorithm
from c2v_sim.data.resident import ResidentData
from c2v_sim.models import MODELS, NORMED_MODELS, build_model
from c2v_sim.system.machine import intra_op_threads
from c2v_sim.system.seeding import torch_seed
from c2v_sim.training.arena import Arena, layout_of
from c2v_sim.training.cohort import train_cohort
from c2v_sim.training.lanes import Lanes
from c2v_sim.training.local_training import CohortTraining, LocalTraining
from c2v_sim.training.optimisers import Sgd

CASES = [
    (name, norm)
    for name in MODELS
    for norm in (("batch", "group") if name in NORMED_MODELS else ("batch",))
]
BATCH, STEPS, CLASSES = 6, 3, 4
MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.25)


class Text:
    """Characters [N, T] and labels [N], as the loop asks for data."""

    device = torch.device("cpu")

    def __init__(self, x, y):
        self.x, self.y = x, y

    def batch(self, ids, generator=None):
        return self.x[ids], self.y[ids]


def data_for(name):
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(CLASSES, (BATCH * STEPS,), generator=generator)
    if name == "lstm":
        return Text(torch.randint(80, (len(y), 10), generator=generator).byte(), y), (10,)
    shape = (24, 24, 3)
    x = torch.randint(256, (len(y), *shape), dtype=torch.uint8, generator=generator)
    return ResidentData(x, y, MEAN, STD, torch.device("cpu")), shape


def trained_by_torch(model, data, order, seed):
    """Three steps of torch.optim.SGD; dropout draws from one seeded generator.

    In the arena's memory format: other convolution kernels round differently, and a ReLU or a
    batch norm over six samples makes more of it than the 1e-5 asked for.
    """
    model = copy.deepcopy(model).to(memory_format=torch.channels_last)
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if hasattr(module, "generator"):
            module.generator = generator
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-3)
    for ids in order.split(BATCH):
        x, y = data.batch(ids)
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model.state_dict()


@pytest.mark.parametrize(("name", "norm"), CASES)
def test_three_steps_equal_torch_optim(name, norm):
    data, shape = data_for(name)
    model = build_model(name, classes=CLASSES, input_shape=shape, norm=norm, seed=0).train()
    layout = layout_of(model)
    server, cohort = Arena(layout, 1), Arena(layout, 1)
    server.read(model, 0)
    lanes = Lanes(model, layout, 1, torch.device("cpu"))
    local = LocalTraining(1, BATCH, Sgd(0.01, 0.9, 1e-3), seed=7)
    ids = np.arange(BATCH * STEPS)
    untouched = torch.get_rng_state()
    training = CohortTraining(lanes, server, cohort, data, (ids,) * 4, local, Algorithm())
    train_cohort(training, np.array([3]), 2)
    lanes.close()
    assert torch.equal(torch.get_rng_state(), untouched)  # no draw from torch's own generator
    order = torch.from_numpy(np.random.default_rng([7, 3, 2, 3]).permutation(len(ids)))
    with intra_op_threads(1):  # as on a lane
        expected = trained_by_torch(model, data, order, torch_seed(7, 2, 3))
    got = cohort.state_dict(0)
    assert got.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(got[key], value, rtol=1e-5, atol=1e-5, msg=key)
    assert all(not torch.equal(got[key], value) for key, value in model.named_parameters())
    begun = server.state_dict(0)
    assert all(torch.equal(begun[key], value) for key, value in model.state_dict().items())
