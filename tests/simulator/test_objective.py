"""Case study iii is added to an algorithm's loss beside the algorithm, which stays as it is."""

import pytest
import torch
import torch.nn.functional as F
from federations import image_federation, made_up_index, simulator_with
from torch import nn

from c2v_sim import Algorithm, RunConfig, Simulator
from c2v_sim.algorithms.run_parts import RunParts
from c2v_sim.simulator.objective import Regularised

FEDERATION = image_federation(clients=5, smallest=4)
CONFIG = RunConfig(model="mlp", rounds=2, participation=0.6, local_epochs=1, batch_size=8)
LOCAL = RunConfig(**vars(CONFIG) | {"improve": ("local",)})
GROWING = RunConfig(**vars(LOCAL) | {"index": "local-model-weights"})


@pytest.mark.parametrize("config", [LOCAL, GROWING])
def test_the_users_algorithm_is_left_as_it_was(config):
    algorithm = Algorithm()
    simulator = simulator_with(FEDERATION, config, algorithm=algorithm)
    simulator.run()
    simulator.close()
    assert vars(algorithm) == {}
    assert simulator.algorithm is algorithm
    assert algorithm.capturable
    assert simulator.training.objective.capturable == (config is LOCAL)


def test_the_loss_is_the_algorithms_and_the_regularisers():
    simulator = simulator_with(FEDERATION, LOCAL)
    objective = simulator.training.objective
    assert isinstance(objective, Regularised)
    assert torch.equal(objective.regulariser.index, made_up_index(FEDERATION).feature)
    client = simulator.lanes._lanes[0].client
    client.begin_participation(0, 1, 4, simulator.server, seed=0)
    x, y = simulator.train_data.batch(torch.arange(4))
    z = client.module.features(x)
    logits = client.module.classifier(z)
    wanted = F.cross_entropy(logits, y) + objective.regulariser(client.module, z, logits)
    assert torch.equal(objective.local_loss(client, x, y), wanted)
    simulator.close()


def test_another_index_is_another_version_of_the_training():
    simulator = simulator_with(FEDERATION, LOCAL)
    before = simulator.training
    simulator.use_index(made_up_index(FEDERATION, seed=6))
    assert simulator.training.version != before.version
    assert simulator.training.lanes is before.lanes
    simulator.close()


class OwnLocalLoss(Algorithm):
    """Flips every image, and then trains as FedAvg."""

    name = "flipping"

    def local_loss(self, client, x, y):
        return super().local_loss(client, x.flip(-1), y)


def test_an_own_local_loss_is_what_is_trained_by():
    ends = []
    for algorithm in (Algorithm(), OwnLocalLoss()):
        simulator = Simulator(FEDERATION, CONFIG, algorithm=algorithm)
        simulator.run()
        simulator.close()
        ends.append(simulator.server.data.clone())
    assert not torch.equal(*ends)


def test_an_own_local_loss_is_refused_where_it_would_be_left_out():
    with pytest.raises(ValueError, match="flipping has a `local_loss` of its own"):
        Simulator(FEDERATION, LOCAL, algorithm=OwnLocalLoss())


def test_an_algorithm_starts_with_a_run_that_is_whole():
    seen = []

    class Asking(Algorithm):
        def start(self, run):
            seen.append(run)
            assert isinstance(run, RunParts)
            assert isinstance(run.model, nn.Module)
            assert run.layout.size == run.server.data.shape[1]
            assert run.lanes.count >= 1
            assert run.batches(9) == [(0, 8)]  # a single sample is dropped
            assert len(run.train_data) == run.federation.partition.sizes.sum()
            self.kept = run.server_state("kept", 2, 3)

        def before_round(self, run, t, clients):
            assert run is seen[0]
            assert len(clients) == 3
            seen.append(t)

    simulator = Simulator(FEDERATION, CONFIG, algorithm=Asking())
    simulator.run()
    simulator.close()
    assert seen[1:] == [1, 2]
    assert simulator.state()["algorithm.kept"] is simulator.algorithm.kept
