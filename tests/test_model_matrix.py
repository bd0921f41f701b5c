"""Every algorithm with every image model, one tiny round each."""

import pytest
import torch
from federations import image_federation

from c2v_sim import RunConfig, Simulator
from c2v_sim.algorithms import ALGORITHMS
from c2v_sim.models import MODELS

# resnet18 is resnet8 with more blocks, and the slowest by far.
IMAGE_MODELS = [name for name in MODELS if name not in ("lstm", "resnet18")]


@pytest.fixture(scope="module")
def federation():
    return image_federation(clients=3, smallest=2, side=16)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("model", IMAGE_MODELS)
def test_every_algorithm_trains_every_model(federation, model, algorithm):
    config = RunConfig(
        model=model,
        algorithm=algorithm,
        rounds=1,
        participation=0.7,
        local_epochs=1,
        batch_size=8,
        lr=0.01,
        lanes=2,
    )
    simulator = Simulator(federation, config)
    before = simulator.server.data.clone()
    record = next(simulator.rounds())
    simulator.close()
    assert torch.isfinite(simulator.server.data).all()
    assert not torch.equal(before, simulator.server.data)
    assert 0.0 <= record.accuracy <= 1.0
