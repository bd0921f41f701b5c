"""examples/own_algorithm.py: a user's own algorithm works, is short and is what it says."""

import sys

import slow_fedavg
import torch
from example_scripts import EXAMPLES, lines_of_class, printed
from federations import image_federation

from c2v_sim import RunConfig, Simulator
from c2v_sim.models import build_model
from c2v_sim.system.machine import intra_op_threads

sys.path.insert(0, str(EXAMPLES))

from own_algorithm import Mifa, toy_federation

CONFIG = RunConfig(
    model="mlp",
    rounds=4,
    participation=0.5,
    local_epochs=2,
    batch_size=8,
    lr=5e-3,
    weight_decay=0.0,
    seed=4,
)


def slow_mifa(federation, config):
    """Modules and dictionaries: (w, G)."""
    dataset, partition = federation.dataset, federation.partition
    shape = tuple(dataset.x_train.shape[1:])
    model = build_model(config.model, classes=dataset.classes, input_shape=shape, seed=config.seed)
    last = {i: [torch.zeros_like(p) for p in model.parameters()] for i in range(partition.clients)}
    for t in range(1, config.rounds + 1):
        for i in slow_fedavg.cohort_of(config, partition.clients, t):
            own = slow_fedavg.train_client(model, dataset, partition.train[i], config, t, i)
            pairs = zip(own.parameters(), model.parameters(), strict=True)
            last[i] = [(theta - w).detach() for theta, w in pairs]
        with torch.no_grad():
            for number, w in enumerate(model.parameters()):
                w += sum(update[number] for update in last.values()) / partition.clients
    return model, last


def finished(federation, **parts):
    simulator = Simulator(federation, CONFIG, **parts)
    simulator.run()
    simulator.close()
    return simulator


def test_mifa_equals_the_slow_implementation():
    federation = image_federation(clients=6, smallest=4)
    simulator = finished(federation, algorithm=Mifa())
    with intra_op_threads(1):
        model, last = slow_mifa(federation, CONFIG)
    got = simulator.global_model()
    for tensor, wanted in zip(got.values(), model.parameters(), strict=True):
        torch.testing.assert_close(tensor, wanted.detach(), rtol=1e-5, atol=1e-5)
    plain = finished(federation).global_model()
    assert max((got[n] - plain[n]).abs().max().item() for n in got) > 1e-3
    algorithm = simulator.algorithm
    for i, update in last.items():
        row = algorithm.last.read(i, torch.empty_like(algorithm.total))
        flat = torch.cat([t.flatten() for t in update])
        wanted = simulator.layout.spread(flat, len(row))
        torch.testing.assert_close(row, wanted, rtol=1e-5, atol=1e-5)


def test_the_server_keeps_the_sum_of_the_clients_last_updates():
    algorithm = finished(image_federation(clients=6, smallest=4), algorithm=Mifa()).algorithm
    rows = [algorithm.last.read(i, torch.empty_like(algorithm.total)) for i in range(6)]
    torch.testing.assert_close(algorithm.total, torch.stack(rows).sum(0), rtol=1e-4, atol=1e-6)
    assert algorithm.total.abs().max() > 1e-3


def test_the_users_state_is_part_of_the_runs_and_lanes_do_not_show():
    federation = image_federation(clients=6, smallest=4)
    whole = finished(federation, algorithm=Mifa())
    assert {"algorithm.total", "client.last update.ids"} <= whole.state().keys()
    first = Simulator(federation, CONFIG, algorithm=Mifa())
    rounds = first.rounds()
    next(rounds), next(rounds)
    second = Simulator(federation, RunConfig(**vars(CONFIG) | {"lanes": 3}), algorithm=Mifa())
    second.load_state(2, first.state())
    second.run()
    for name, tensor in whole.state().items():
        assert torch.equal(second.state()[name], tensor), name


def test_the_class_has_fewer_than_forty_lines():
    assert lines_of_class("own_algorithm.py") < 40


def test_the_example_runs_as_a_program():
    lines = printed("own_algorithm.py")
    assert [line.split(":")[0] for line in lines] == ["fedavg", "mifa"]
    fedavg, mifa = (float(line.split()[2]) for line in lines)
    assert mifa > fedavg > 0.4  # of five classes


def test_every_client_of_the_example_sees_one_class():
    assert (toy_federation().label_counts > 0).sum(1).tolist() == [1] * 20
