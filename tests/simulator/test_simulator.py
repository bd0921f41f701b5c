"""The simulator against the slow, obvious FedAvg, and its promise of the same bits."""

import hashlib
import math

import numpy as np
import pytest
import slow_fedavg
import torch
from federations import image_federation
from torch import nn

from c2v_sim import RunConfig, Simulator
from c2v_sim.models import build_model
from c2v_sim.system.errors import TrainingError
from c2v_sim.system.machine import intra_op_threads

SMALL = RunConfig(
    rounds=3,
    participation=0.5,
    local_epochs=2,
    batch_size=8,
    lr=0.05,
    momentum=0.9,
    weight_decay=1e-3,
    seed=3,
)


def config(**changes):
    return RunConfig(**{**vars(SMALL), **changes})


def finished(federation, settings, model=None):
    simulator = Simulator(federation, settings, model=model)
    records = list(simulator.rounds())
    simulator.close()
    return simulator, records


def bits(simulator):
    """A hash of everything that must not depend on speed."""
    return hashlib.sha256(
        simulator.server.data.numpy().tobytes() + simulator.server.integers.numpy().tobytes()
    ).hexdigest()


@pytest.mark.parametrize(
    ("model", "norm"),
    [("cnn", "batch"), ("resnet8", "group"), ("resnet8", "batch"), ("mlp", "batch")],
)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_equals_plain_torch_after_three_rounds(model, norm, momentum):
    # A small rate: two float32 runs drift apart by a kink (ReLU, max-pool) that one of them
    # crosses, in proportion to lr; plain torch in another memory format differs as much. A large
    # decay, so that a decay forgotten or applied twice is a hundred times the tolerance.
    federation = image_federation(clients=6, smallest=4)
    rate = 1e-3 * (1 - momentum)
    settings = config(
        model=model, norm=norm, momentum=momentum, lr=rate, weight_decay=0.1, seed=4, conv="torch"
    )
    start = build_model(model, classes=4, input_shape=(16, 16, 3), norm=norm, seed=settings.seed)
    simulator, records = finished(federation, settings)
    with intra_op_threads(1):
        expected = slow_fedavg.run(start, federation, settings)
    got, wanted, begun = simulator.global_model(), expected.state_dict(), start.state_dict()
    assert got.keys() == wanted.keys()
    for name in wanted:
        torch.testing.assert_close(got[name], wanted[name], rtol=1e-5, atol=1e-5, msg=name)
    moved = max((got[n] - begun[n]).abs().max().item() for n, _ in start.named_parameters())
    assert moved > 3e-4, "too little was trained for the comparison to mean anything"
    accuracies = slow_fedavg.client_accuracies(expected, federation)
    assert records[-1].accuracy == pytest.approx(np.mean(accuracies), abs=0.02)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_same_bits_for_any_number_of_lanes(norm):
    federation = image_federation(clients=8)
    runs = [
        finished(federation, config(model="resnet8", norm=norm, lanes=lanes, eval_every=every))
        for lanes, every in ((1, 1), (2, 1), (4, 3))
    ]
    assert len({bits(simulator) for simulator, _ in runs}) == 1
    assert runs[0][1][-1].accuracy == runs[2][1][-1].accuracy
    assert [r.cohort for r in runs[0][1]] == [r.cohort for r in runs[2][1]]


def test_another_seed_gives_another_model():
    federation = image_federation()
    assert bits(finished(federation, config(seed=1))[0]) != bits(finished(federation, SMALL)[0])


def test_torch_threads_and_generator_are_left_alone():
    before, state = torch.get_num_threads(), torch.get_rng_state()
    finished(image_federation(), config(rounds=1))
    assert torch.get_num_threads() == before
    assert torch.equal(torch.get_rng_state(), state)


def test_records_tell_what_happened():
    federation = image_federation(clients=6)
    simulator, records = finished(federation, config(eval_every=2))
    assert [r.accuracy is None for r in records] == [True, False, False]  # the last is evaluated
    for record in records:
        sizes = federation.partition.sizes[record.cohort]
        assert record.weights == pytest.approx(sizes / sizes.sum())
        assert record.cohort == sorted(set(record.cohort))
        assert len(record.cohort) == simulator.cohort_size == 3
        assert set(record.seconds) == {"sample", "train", "aggregate", "evaluate"}
        assert math.isfinite(record.train_loss)


def test_augmentation_changes_training_and_stays_reproducible():
    federation = image_federation()
    plain, one, two = (
        finished(federation, config(augment=a, lanes=lanes))[0]
        for a, lanes in (("none", 1), ("crop-flip", 1), ("crop-flip", 2))
    )
    assert bits(one) == bits(two) != bits(plain)


def test_iterating_in_two_halves_equals_one_go():
    federation = image_federation()
    whole, _ = finished(federation, SMALL)
    halves = Simulator(federation, SMALL)
    for record in halves.rounds():
        if record.round == 2:
            break
    assert halves.round == 2
    assert [r.round for r in halves.rounds()] == [3]
    halves.close()
    assert bits(halves) == bits(whole)


def test_a_diverging_run_names_round_client_and_algorithm():
    simulator = Simulator(image_federation(), config(lr=1e30))
    with pytest.raises(TrainingError, match=r"round \d, client \d.*algorithm fedavg.*not finite"):
        simulator.run()
    simulator.close()


class OneLayer(nn.Module):
    """A user's model: no forward needed, only features and classifier."""

    def __init__(self):
        super().__init__()
        self.classifier = nn.Linear(768, 4)

    def features(self, x):
        return x.flatten(1)


def test_a_users_module_is_trained_in_place_of_a_named_model():
    torch.manual_seed(0)
    model = OneLayer()
    start = model.classifier.weight.detach().clone()
    simulator, records = finished(image_federation(), config(lr=0.005, rounds=5), model)
    assert records[-1].train_loss < records[0].train_loss
    model.load_state_dict(simulator.global_model())
    assert not torch.equal(model.classifier.weight, start)


def test_a_model_without_features_is_refused():
    with pytest.raises(TypeError, match="features"):
        Simulator(image_federation(), SMALL, model=nn.Linear(3, 4))


def test_cuda_is_refused_with_the_remedy_where_there_is_none():
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(ValueError, match="no CUDA device here; use --device cpu"):
        Simulator(image_federation(), config(device="cuda"))
