"""examples/own_algorithm.py: a user's own algorithm works, is short and is what it says."""

import copy
import sys

import numpy as np
import slow_fedavg
import torch
import torch.nn.functional as F
from example_scripts import EXAMPLES, lines_of_class, printed
from federations import image_federation

from c2v_sim import RunConfig, Simulator
from c2v_sim.models import build_model
from c2v_sim.system.machine import intra_op_threads

sys.path.insert(0, str(EXAMPLES))

from own_algorithm import Scaffold, toy_federation

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


def slow_scaffold(federation, config):
    """Modules, gradients by hand, dictionaries: (w, c, c_i)."""
    dataset, partition = federation.dataset, federation.partition
    shape = tuple(dataset.x_train.shape[1:])
    model = build_model(config.model, classes=dataset.classes, input_shape=shape, seed=config.seed)
    zeros = [torch.zeros_like(p) for p in model.parameters()]
    c, own = zeros, dict.fromkeys(range(partition.clients), zeros)
    for t in range(1, config.rounds + 1):
        cohort, ends, news = slow_fedavg.cohort_of(config, partition.clients, t), [], {}
        for i in cohort:
            local, steps = copy.deepcopy(model), 0
            order, ids = np.random.default_rng([config.seed, 3, t, i]), partition.train[i]
            for _ in range(config.local_epochs):
                shuffled = ids[order.permutation(len(ids))]
                for start in range(0, len(ids), config.batch_size):
                    batch = shuffled[start : start + config.batch_size]
                    if len(batch) == 1 < len(ids):
                        continue
                    x = slow_fedavg.normalised(dataset.x_train[batch], dataset.mean, dataset.std)
                    loss = F.cross_entropy(local(x), dataset.y_train[batch])
                    gradients = torch.autograd.grad(loss, list(local.parameters()))
                    with torch.no_grad():
                        for p, g, a, b in zip(
                            local.parameters(), gradients, c, own[i], strict=True
                        ):
                            p -= config.lr * (g + a - b)
                    steps += 1
            parts = zip(own[i], c, model.parameters(), local.parameters(), strict=True)
            news[i] = [
                b - a + (w - theta).detach() / (steps * config.lr) for b, a, w, theta in parts
            ]
            ends.append(local)
        for i, new in news.items():
            c = [a + (n - o) / partition.clients for a, n, o in zip(c, new, own[i], strict=True)]
        own |= news
        model.load_state_dict(slow_fedavg.average(ends, [1 / len(ends)] * len(ends)))
    return model, c, own


def finished(federation, **parts):
    simulator = Simulator(federation, CONFIG, **parts)
    simulator.run()
    simulator.close()
    return simulator


def test_scaffold_equals_the_slow_implementation():
    federation = image_federation(clients=6, smallest=4)
    simulator = finished(federation, algorithm=Scaffold())
    with intra_op_threads(1):
        model, c, own = slow_scaffold(federation, CONFIG)
    got = simulator.global_model()
    for tensor, wanted in zip(got.values(), model.parameters(), strict=True):
        torch.testing.assert_close(tensor, wanted.detach(), rtol=1e-5, atol=1e-5)
    plain = finished(federation).global_model()
    assert max((got[n] - plain[n]).abs().max().item() for n in got) > 1e-3
    algorithm = simulator.algorithm

    def flat(tensors):
        return torch.cat([t.flatten() for t in tensors])

    # c is a difference divided by lr and steps, and so is its error
    torch.testing.assert_close(algorithm.c, flat(c), rtol=1e-3, atol=1e-4)
    for i in range(6):
        row = algorithm.c_i.read(i, torch.empty_like(algorithm.c))
        torch.testing.assert_close(row, flat(own[i]), rtol=1e-3, atol=1e-4)


def test_the_server_keeps_the_mean_of_the_clients_control_variates():
    simulator = finished(image_federation(clients=6, smallest=4), algorithm=Scaffold())
    algorithm = simulator.algorithm
    rows = [algorithm.c_i.read(i, torch.empty_like(algorithm.c)) for i in range(6)]
    torch.testing.assert_close(algorithm.c, torch.stack(rows).mean(0), rtol=1e-4, atol=1e-6)
    assert algorithm.c.abs().max() > 0.1


def test_the_users_state_is_part_of_the_runs_and_lanes_do_not_show():
    federation = image_federation(clients=6, smallest=4)
    whole = finished(federation, algorithm=Scaffold())
    assert {"algorithm.c", "client.c_i.ids", "client.c_i.rows.0"} <= whole.state().keys()
    first = Simulator(federation, CONFIG, algorithm=Scaffold())
    rounds = first.rounds()
    next(rounds), next(rounds)
    second = Simulator(federation, RunConfig(**vars(CONFIG) | {"lanes": 3}), algorithm=Scaffold())
    second.load_state(2, first.state())
    second.run()
    for name, tensor in whole.state().items():
        assert torch.equal(second.state()[name], tensor), name


def test_the_class_has_fewer_than_forty_lines():
    assert lines_of_class("own_algorithm.py") < 40


def test_the_example_runs_as_a_program():
    lines = printed("own_algorithm.py")
    assert [line.split(":")[0] for line in lines] == ["fedavg", "scaffold"]
    fedavg, scaffold = (float(line.split()[2]) for line in lines)
    assert scaffold > fedavg > 0.4  # of five classes


def test_every_client_of_the_example_sees_one_class():
    assert (toy_federation().label_counts > 0).sum(1).tolist() == [1] * 20
