"""FedBN: what a client keeps, what it begins with, and by what it is tested."""

import pytest
import slow_algorithms
import torch
from federations import image_federation
from slow_fedavg import normalised

from c2v_sim import RunConfig, Simulator
from c2v_sim.algorithms.fedbn import batch_norm_tensors
from c2v_sim.system.machine import intra_op_threads

FEDERATION = image_federation(clients=6, smallest=4)
SETTINGS = {
    "algorithm": "fedbn",
    "model": "resnet8",
    "rounds": 3,
    "participation": 0.5,
    "local_epochs": 1,
    "batch_size": 8,
    "lr": 1e-2,
    "seed": 1,
}


def trained(**changes):
    simulator = Simulator(FEDERATION, RunConfig(**SETTINGS | changes))
    records = simulator.run().records
    simulator.close()
    return simulator, records


@pytest.fixture(scope="module")
def pair():
    simulator, records = trained(lr=1e-4)
    with intra_op_threads(1):
        return simulator, records, slow_algorithms.run(FEDERATION, simulator.config)


def test_every_client_keeps_its_own_norms(pair):
    simulator, records, slow = pair
    rows, slots = simulator.algorithm.norms, simulator.algorithm.slots
    seen = {i for record in records for i in record.cohort}
    assert {i for i in range(6) if i in rows} == seen == set(slow.norms)
    assert 0 < len(seen) < 6
    names = [f"body.{slot.name}" for slot in slots]
    assert {n.rsplit(".", 1)[1] for n in names} == {"weight", "bias", "running_mean", "running_var"}
    for client, own in slow.norms.items():
        row = rows.read(client, torch.empty(rows.width))
        wanted = torch.cat([own[name] for name in names])
        torch.testing.assert_close(row, wanted, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_every_client_is_tested_by_its_own_norms(pair):
    simulator, records, slow = pair
    dataset, accuracies, logits_differ = FEDERATION.dataset, [], False
    for client, ids in enumerate(FEDERATION.partition.test):
        x = normalised(dataset.x_test[ids], dataset.mean, dataset.std)
        own, shared = slow_algorithms.own_model(slow, client).eval()(x), slow.model.eval()(x)
        assert torch.equal(own, shared) == (client not in slow.norms)
        logits_differ |= bool((own.argmax(1) != shared.argmax(1)).any())
        accuracies.append((own.argmax(1) == dataset.y_test[ids]).float().mean().item())
    assert simulator.client_accuracy.tolist() == pytest.approx(accuracies)
    assert records[-1].accuracy == pytest.approx(sum(accuracies) / 6)


def test_lanes_do_not_show_in_the_evaluation():
    one, three = (trained(lanes=lanes, rounds=2)[1] for lanes in (1, 3))
    assert [r.accuracy for r in one] == [r.accuracy for r in three]
    assert [r.accuracy_global for r in one] == [r.accuracy_global for r in three]


def test_where_all_have_taken_part_nobody_is_tested_by_the_global_model():
    simulator, _ = trained(participation=1.0, rounds=2)
    first = simulator.client_accuracy.tolist()
    norms = batch_norm_tensors(simulator.model)
    for slot in simulator.layout.parameters + simulator.layout.buffers:
        if slot.name in norms:
            slot.view(simulator.server.data[0]).fill_(float("nan"))
    again = Simulator(FEDERATION, simulator.config)
    again.load_state(2, simulator.state())
    assert again.evaluate().clients.tolist() == first
    again.close()


def test_a_model_without_batch_norm_is_refused():
    for changes in ({"model": "cnn"}, {"norm": "group"}):
        with pytest.raises(ValueError, match="fedbn needs a model with batch norm"):
            Simulator(FEDERATION, RunConfig(**SETTINGS | changes))
