"""A cohort as a number of clients, and samples in the order in which they are."""

import pytest
import slow_fedavg
import torch
from federations import image_federation

from c2v_sim import RunConfig, Simulator
from c2v_sim.config import make_config
from c2v_sim.models import build_model
from c2v_sim.system.errors import ConfigError


@pytest.mark.parametrize("model", ["linear", "cnn"])  # stacked, and on lanes
def test_three_clients_a_round_without_shuffling(model):
    """As the slow, obvious FedAvg does it."""
    federation = image_federation()
    config = RunConfig(
        model=model, rounds=2, cohort=4, shuffle=False, local_epochs=2, batch_size=8, lr=0.02
    )
    simulator = Simulator(federation, config)
    start = build_model(model, classes=4, input_shape=(16, 16, 3), seed=config.seed)
    assert [len(record.cohort) for record in simulator.rounds()] == [4, 4]
    assert simulator.path.stacked == (model == "linear")
    expected = slow_fedavg.run(start, federation, config).state_dict()
    for name, tensor in simulator.global_model().items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5)
    shuffled = Simulator(federation, RunConfig(**vars(config) | {"shuffle": True}))
    shuffled.run()
    name = next(iter(expected))
    assert not torch.equal(shuffled.global_model()[name], simulator.global_model()[name])


def test_a_cohort_that_contradicts_is_refused():
    for given, flags in (
        ({"cohort": 10, "participation": 0.5}, ()),
        ({"cohort": 10, "participation": 0.1}, ("participation", "cohort")),
    ):
        with pytest.raises(ConfigError, match=r"cohort = 10 and participation = 0\.\d both say"):
            make_config(given, flags=flags)
    with pytest.raises(ConfigError, match="both say how many clients train; leave one of them out"):
        RunConfig(cohort=10, participation=0.5)
    with pytest.raises(ConfigError, match="cohort must be at most the 6 clients, got 7"):
        Simulator(image_federation(), RunConfig(cohort=7))
