"""The GPU's lane on a stand-in for torch.cuda: order of its work, and the bits of the CPU's."""

import dataclasses
import functools
import threading
import time

import numpy as np
import pytest
import torch
from cuda_stand_in import CudaStandIn
from federations import image_federation, index_of
from planted import planted
from torch import nn

from c2v_sim import RunConfig, Simulator
from c2v_sim.algorithms import ALGORITHMS, Algorithm
from c2v_sim.data.resident import ResidentData
from c2v_sim.index.config import IndexConfig
from c2v_sim.index.encoders.encoder import WIDTH
from c2v_sim.index.training import Pairs, train_network
from c2v_sim.system.errors import TrainingError
from c2v_sim.training import cuda_lane
from c2v_sim.training.arena import Arena, layout_of
from c2v_sim.training.cohort import train_cohort
from c2v_sim.training.cuda_lane import RUNS_FIRST, CudaLane
from c2v_sim.training.lane import Lane
from c2v_sim.training.lanes import LANES, Lanes
from c2v_sim.training.local_training import LENGTHS, CohortTraining, LocalTraining, padded_length
from c2v_sim.training.memory import lane_bytes
from c2v_sim.training.optimisers import Adam, Sgd

CPU = torch.device("cpu")
FEDERATION = image_federation(clients=6, smallest=3)


@pytest.fixture
def cuda(monkeypatch):
    cuda = CudaStandIn()

    def pin_memory(tensor):
        cuda.log.append(("upload", cuda.current_stream(None).name))
        return tensor

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    return cuda


@pytest.fixture
def use_stand_in(cuda, monkeypatch):
    """Call it, and lanes that are made from now on are those of the stand-in."""

    def use(runs_first=1):
        make = functools.partial(CudaLane, cuda=cuda, runs_first=runs_first)
        monkeypatch.setitem(LANES, "cpu", make)

    return use


def lanes_for(model, count=1):
    return Lanes(model, layout_of(model), count, CPU)


class LoggedData(ResidentData):
    """Writes down each batch that Python, not a graph, asks for."""

    def __init__(self, cuda, samples):
        g = torch.Generator().manual_seed(0)
        x, y = torch.randn(samples, 6, generator=g), torch.arange(samples) % 3
        super().__init__(x, y, (), (), CPU)
        self.cuda = cuda

    def batch(self, ids, generator=None):
        self.cuda.log.append(("batch", self.cuda.current_stream(None).name, len(ids)))
        return super().batch(ids, generator)


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.dropout = nn.Linear(6, 5), nn.Dropout(0.5)
        self.classifier = nn.Linear(5, 3)

    def features(self, x):
        return self.dropout(torch.tanh(self.hidden(x)))


def tiny():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Tiny()


LOCAL = LocalTraining(epochs=2, batch_size=4, optimiser=Sgd(0.1, momentum=0.9), seed=1)


def training_of(lanes, data, sizes, algorithm=None, local=LOCAL):
    layout = layout_of(tiny())
    server, cohort = Arena(layout, 1), Arena(layout, len(sizes))
    server.read(tiny(), 0)
    samples = tuple(np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]))
    return CohortTraining(lanes, server, cohort, data, samples, local, algorithm or Algorithm())


def train(lanes, data, sizes, algorithm=None, local=LOCAL, rounds=1):
    """Global rows after each round of averaging the cohort [rounds, size]."""
    training, rows = training_of(lanes, data, sizes, algorithm, local), []
    server, cohort = training.server, training.cohort
    for t in range(rounds):
        train_cohort(training, np.arange(len(sizes)), t)
        server.data[0] = cohort.data.mean(0)
        rows.append(server.data[0].clone())
    lanes.close()
    return torch.stack(rows)


def test_a_step_runs_then_is_recorded_then_replayed(cuda, use_stand_in):
    use_stand_in()
    train(lanes_for(tiny()), LoggedData(cuda, 10), [10])
    run = lambda size: ("batch", "lane 0", size)  # noqa: E731
    upload, record, replay = ((name, "lane 0") for name in ("upload", "record", "replay"))
    assert cuda.log == [
        ("wait", "lane 0", "main"),  # the global row is ready
        upload,  # epoch 1: batches of 4, 4 and 2
        run(4),
        record,
        run(4),  # by which it is recorded
        replay,
        run(2),
        upload,  # epoch 2
        replay,
        replay,
        record,
        run(2),
        replay,
        ("wait", "main", "lane 0"),  # before aggregation
    ]


class Together(Algorithm):
    """Clients begin three at a time, so that every one of three lanes has work."""

    def __init__(self):
        self.barrier = threading.Barrier(3, timeout=60)

    def begin(self, client):
        self.barrier.wait()


def test_graphs_serve_later_clients_and_rounds_and_are_the_lanes_own(cuda, use_stand_in):
    use_stand_in()
    data, lanes = LoggedData(cuda, 60), lanes_for(tiny(), 3)
    train(lanes, data, [8, 12, 8, 16, 8, 8], Together(), rounds=4)
    names = [f"lane {i}" for i in range(3)]
    # All batches have the same length: one that runs and one that is recorded on each lane.
    assert sorted(g.recorded_on.name for g in cuda.graphs) == names
    assert len({g.pool for g in cuda.graphs}) == 3
    assert sum(event[0] == "batch" for event in cuda.log) == 3 * 2
    assert sum(g.replays for g in cuda.graphs) == 4 * 2 * 60 // 4 - 3
    a_round = [(name, "main") for name in names] + [("main", name) for name in names]
    assert [event[1:] for event in cuda.log if event[0] == "wait"] == 4 * a_round


def test_a_batch_length_that_does_not_come_again_is_not_recorded(cuda, use_stand_in):
    use_stand_in()
    local = LocalTraining(epochs=1, batch_size=4, optimiser=Sgd(0.1), seed=1)
    train(lanes_for(tiny()), LoggedData(cuda, 13), [2, 3, 8], local=local)
    assert len(cuda.graphs) == 1


def test_a_kind_is_recorded_when_it_has_come_often_enough_to_pay(cuda, use_stand_in):
    use_stand_in(RUNS_FIRST)
    local = LocalTraining(epochs=RUNS_FIRST, batch_size=4, optimiser=Sgd(0.1), seed=1)
    data = LoggedData(cuda, 10)
    train(lanes_for(tiny()), data, [10], local=local)  # batches of 4, 4 and 2 in each epoch
    assert [g.replays for g in cuda.graphs] == [2 * RUNS_FIRST - RUNS_FIRST]
    train(lanes_for(tiny()), data, [10], local=local, rounds=2)
    assert [g.replays for g in cuda.graphs[1:]] == [3 * RUNS_FIRST, RUNS_FIRST]


def test_a_lane_keeps_the_graphs_that_were_used_last(cuda, use_stand_in, monkeypatch):
    monkeypatch.setattr(cuda_lane, "MOST_GRAPHS", 2)
    model, data = tiny(), LoggedData(cuda, 40)
    # One batch an epoch, its length that of the client: 4 and 3 stay in use, 2 comes between.
    local = LocalTraining(epochs=3, batch_size=4, optimiser=Sgd(0.1), seed=1)
    plain = train(lanes_for(model), data, [4, 3, 2], local=local, rounds=2)
    use_stand_in()
    replayed = train(lanes_for(model), data, [4, 3, 2], local=local, rounds=2)
    assert torch.equal(plain, replayed)
    # Every length goes for the third before it comes again, and has to pay anew.
    assert [g.replays for g in cuda.graphs] == [2] * 6
    lane = CudaLane(tiny(), layout_of(tiny()), CPU, cuda=cuda, runs_first=0)
    lane.prepare(1, capturable=True)
    with lane.working():
        for length in (1, 2, 1, 3, 1):
            lane.step(lambda ids: ids.add(1), torch.arange(length))
    assert [g.replays for g in cuda.graphs[6:]] == [3, 1, 1]


class FirstStepsWait(LoggedData):
    """All first steps but one wait some time for a recording to begin, and note if one did."""

    def __init__(self, cuda, samples):
        super().__init__(cuda, samples)
        self.own, self.recording, self.overlaps = threading.local(), threading.Event(), []
        self.one = iter([0.0])

    def batch(self, ids, generator=None):
        seen = getattr(self.own, "steps", 0)
        self.own.steps = seen + 1
        if seen == 1:  # the one that is recorded
            self.recording.set()
            time.sleep(0.1)
            self.recording.clear()
        elif seen == 0:
            self.overlaps.append(self.recording.wait(next(self.one, 0.3)))
        return super().batch(ids, generator)


def test_no_first_step_overlaps_a_recording(cuda, use_stand_in):
    use_stand_in()
    data = FirstStepsWait(cuda, 24)
    train(lanes_for(tiny(), 3), data, [8, 8, 8], Together())
    assert data.overlaps == [False] * 3


@pytest.mark.parametrize("optimiser", [Sgd(0.1, 0.9, 0.01), Adam(0.01)])
def test_replayed_training_has_the_bits_of_the_cpus(cuda, use_stand_in, optimiser):
    local = LocalTraining(epochs=3, batch_size=4, optimiser=optimiser, seed=1)
    sizes, data = [9, 3, 14, 6], LoggedData(cuda, 32)
    model = tiny()
    plain = train(lanes_for(model), data, sizes, local=local, rounds=3)
    use_stand_in()
    for lanes in (1, 2):
        replayed = train(lanes_for(model, lanes), data, sizes, local=local, rounds=3)
        assert torch.equal(plain, replayed)
    assert sum(g.replays for g in cuda.graphs) > 30


SETTINGS = {
    "rounds": 3,
    "participation": 0.5,  # so few that they are not stacked
    "local_epochs": 2,
    "batch_size": 8,
    "lr": 0.02,
    "momentum": 0.9,
    "weight_decay": 1e-3,
    "model": "mlp",
    "seed": 3,
    "conv": "torch",  # as on a GPU; and layers taken over let torch have calls that are watched
}


@pytest.fixture
def run_both(use_stand_in, monkeypatch):
    """Gives the finished simulators: on the CPU's lanes, which pad as a GPU's do, and on the
    stand-in's."""
    monkeypatch.setattr(Lane, "pads", True)

    def run(changes, make_algorithm=lambda: None, index=None):
        config = RunConfig(**(SETTINGS | changes))
        plain = Simulator(FEDERATION, config, algorithm=make_algorithm(), index=index)
        use_stand_in()
        config = dataclasses.replace(config, lanes=2)
        replayed = Simulator(FEDERATION, config, algorithm=make_algorithm(), index=index)
        for simulator in (plain, replayed):
            simulator.run()
            simulator.close()
        return plain, replayed

    return run


def same_bits(plain, replayed):
    one, two = plain.state(), replayed.state()
    assert one.keys() == two.keys()
    return all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_has_the_bits_of_the_cpus(cuda, run_both, algorithm):
    # Evaluation after every round binds the lanes' modules to the global row and back.
    model = {"model": "resnet8"} if algorithm == "fedbn" else {}  # which keeps batch norms
    plain, replayed = run_both({"algorithm": algorithm} | model)
    assert same_bits(plain, replayed)
    replays = sum(g.replays for g in cuda.graphs)
    assert replays > 40 if plain.algorithm.capturable else replays == 0


@pytest.mark.parametrize("model", ["cnn", "resnet8"])
def test_convolutions_batch_norm_and_augmentation_have_the_bits_of_the_cpus(cuda, run_both, model):
    assert same_bits(*run_both({"model": model, "augment": "crop-flip", "rounds": 2}))
    assert sum(g.replays for g in cuda.graphs) > 20


class TwoKinds(Algorithm):
    """Client 1's loss is another one, as MOON's is for clients that have a previous model."""

    def __init__(self):
        self.asked = []

    def begin(self, client):
        client.variant = client.id == 1

    def loss(self, client, x, y, z, logits):
        self.asked.append(client.variant)
        loss = super().loss(client, x, y, z, logits)
        return loss + z.square().mean() if client.variant else loss


def test_steps_that_differ_in_kind_have_graphs_of_their_own(cuda, use_stand_in):
    algorithm, model, data = TwoKinds(), tiny(), LoggedData(cuda, 24)
    plain = train(lanes_for(model), data, [8, 8, 8], TwoKinds())
    use_stand_in()
    replayed = train(lanes_for(model), data, [8, 8, 8], algorithm)
    assert algorithm.asked == [False, False, True, True]  # each ran once and was recorded once
    assert [g.replays for g in cuda.graphs] == [7, 3]
    assert torch.equal(replayed, plain)


class UsesTheId(Algorithm):
    """Wrong on a GPU: the id is a number of Python's."""

    def loss(self, client, x, y, z, logits):
        return super().loss(client, x, y, z, logits) * (1 + client.id)


def test_the_stand_in_finds_what_a_graph_would_get_wrong(run_both):
    assert not same_bits(*run_both({}, UsesTheId))


class AsksTheDevice(Algorithm):
    def loss(self, client, x, y, z, logits):
        loss = super().loss(client, x, y, z, logits)
        return loss * 2 if loss.item() > 1 else loss


def test_a_step_that_asks_the_device_is_refused_with_the_remedy(run_both):
    cause = "capturing: aten._local_scalar_dense"  # not what ending the recording says after it
    with pytest.raises(TrainingError, match=rf"cannot be recorded.*{cause}.*capturable = False"):
        run_both({}, AsksTheDevice)


def test_a_step_that_is_not_capturable_runs_as_it_is(cuda, run_both):
    def algorithm():
        made = AsksTheDevice()
        made.capturable = False
        return made

    assert same_bits(*run_both({}, algorithm))
    assert not cuda.graphs


def test_a_module_that_is_not_capturable_runs_as_it_is(cuda, use_stand_in, monkeypatch):
    monkeypatch.setattr(Tiny, "capturable", False, raising=False)
    use_stand_in()
    train(lanes_for(tiny()), LoggedData(cuda, 16), [16])
    assert not cuda.graphs


def test_attention_with_dropout_is_recorded(cuda, use_stand_in, monkeypatch):
    """As on a GPU, where the seed of the mask stays on the device."""
    monkeypatch.setattr("c2v_sim.models.attention.on_the_host", lambda q: False)
    monkeypatch.setattr("c2v_sim.models.cct.BLOCKS", 2)
    monkeypatch.setattr(Lane, "pads", True)
    config = RunConfig(**SETTINGS | {"model": "cct", "lanes": 1, "rounds": 1})
    ends = []
    for _ in range(2):
        simulator = Simulator(image_federation(clients=3, smallest=16, side=8), config)
        simulator.run()
        simulator.close()
        ends.append(simulator)
        use_stand_in()
    assert same_bits(*ends)
    assert sum(g.replays for g in cuda.graphs) > 2


@pytest.mark.parametrize("changes", [{}, {"algorithm": "moon"}, {"algorithm": "fediir"},
                                     {"algorithm": "fedlc"}, {"improve": ("local",)},
                                     {"improve": ("local",), "local_orth": "cosine"}])  # fmt: skip
def test_padded_batches_give_the_model_of_those_as_they_are(cuda, use_stand_in, changes):
    """Up to the order of sums, in one graph for each of a few lengths."""
    config = RunConfig(**SETTINGS | {"local_epochs": 3, "lanes": 1, "participation": 1.0} | changes)
    config = dataclasses.replace(config, stacked="never")
    index = random_index(0) if config.improve else None
    ends = []
    for _ in range(2):
        simulator = Simulator(FEDERATION, config, index=index)
        start = simulator.server.data[0].clone()
        losses = [record.train_loss for record in simulator.rounds()]
        ends.append((simulator.server.data[0].clone(), losses))
        assert bool(simulator.training.longest) == bool(len(ends) - 1)
        simulator.close()
        use_stand_in()
    (plain, plain_losses), (padded, padded_losses) = ends
    assert (padded - plain).abs().max() < 1e-4 * (plain - start).abs().max()
    assert padded_losses == pytest.approx(plain_losses, rel=1e-5)
    assert len({len(g.ids) for g in recorded_steps(simulator)}) <= LENGTHS


def recorded_steps(simulator):
    return [g for lane in simulator.lanes._lanes for g in lane._graphs.values()]


def test_lengths_of_padded_batches():
    assert [padded_length(n, 128) for n in (1, 32, 33, 96, 97, 128)] == [32, 32, 64, 96, 128, 128]
    assert [padded_length(n, 10) for n in (1, 3, 4, 9, 10)] == [3, 3, 6, 9, 10]
    assert [padded_length(n, 2) for n in (1, 2)] == [1, 2]
    for longest in range(1, 40):
        lengths = {padded_length(n, longest) for n in range(1, longest + 1)}
        assert len(lengths) <= LENGTHS
        assert max(lengths) == longest


def test_batches_are_padded_where_samples_do_not_meet(cuda, use_stand_in):
    use_stand_in()
    padded = {}
    for changes in ({"model": "resnet8", "norm": "batch"}, {"model": "resnet8", "norm": "group"},
                    {"algorithm": "fedproto"}, {"model": "cnn"}):  # fmt: skip
        simulator = Simulator(FEDERATION, RunConfig(**SETTINGS | changes))
        training = simulator.training
        padded[tuple(changes.values())] = bool(
            training.longest and training.objective.leaves_out_padding
        )
        simulator.close()
    assert list(padded.values()) == [False, True, False, True]


def test_an_index_that_moves_is_not_recorded(cuda, run_both):
    config = {"improve": ("local",), "index": "local-model-weights"}
    assert same_bits(*run_both(config))
    assert not cuda.graphs


def random_index(seed):
    feature = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(seed))
    return index_of(FEDERATION, feature, torch.zeros(6, 0))


def test_an_index_that_stays_is_recorded(cuda, run_both):
    config = {"improve": ("local",)}
    assert same_bits(*run_both(config, index=random_index(0)))
    assert sum(g.replays for g in cuda.graphs) > 40


def test_another_part_of_the_training_is_recorded_anew(cuda, use_stand_in):
    use_stand_in()
    lanes = lanes_for(tiny())
    first = training_of(lanes, LoggedData(cuda, 8), [8])
    other = dataclasses.replace(first, objective=Algorithm())
    for training in (first, first, other):
        train_cohort(training, np.arange(1), 1)
    lanes.close()
    assert [g.replays for g in cuda.graphs] == [3 + 4, 3]
    assert len({g.pool for g in cuda.graphs}) == 2


def test_another_index_is_recorded_anew(cuda, use_stand_in, monkeypatch):
    monkeypatch.setattr(Lane, "pads", True)
    config = RunConfig(**SETTINGS | {"improve": ("local",), "lanes": 2})
    ends = []
    for _ in range(2):  # on the CPU's lanes, then on the stand-in's
        simulator = Simulator(FEDERATION, config, index=random_index(0))
        rounds = simulator.rounds()
        next(rounds), next(rounds)
        simulator.use_index(random_index(1))
        next(rounds)
        simulator.close()
        ends.append(simulator)
        use_stand_in()
    assert same_bits(*ends)
    assert cuda.graphs


@pytest.mark.parametrize("strategy", ["global", "federated"])
def test_the_index_network_has_the_bits_of_the_cpus(cuda, use_stand_in, strategy):
    federation, images, labels = planted(clients_per_domain=1, samples=17, classes=5)
    pairs = Pairs(images, labels, federation.dataset.y_train, CPU)
    config = IndexConfig(
        strategy=strategy,
        epochs=2,
        local_epochs=2,
        participation=0.5,
        hidden=32,
        batch_size=8,
        lanes=1,  # all add to one tensor of losses, which the stand-in cannot tell apart
    )
    plain, whole = train_network(pairs, federation.partition, config)
    use_stand_in()
    replayed, again = train_network(pairs, federation.partition, config)
    assert whole.curve == again.curve
    assert all(map(torch.equal, plain.parameters(), replayed.parameters()))
    assert sum(g.replays for g in cuda.graphs) > 5


def test_memory_of_a_lane_follows_the_batch_and_the_model():
    model = nn.Sequential(nn.Linear(10, 20, bias=False), nn.Tanh())  # keeps its input and output
    x = torch.randn(2, 10)
    rows = 4 * 4 * 200
    assert lane_bytes(model, lambda: model(x), 2, 2) == rows + 2 * 2 * 4 * (10 + 20)
    assert lane_bytes(model, lambda: model(x), 2, 64) == rows + 2 * 64 * 4 * (10 + 20)
