"""FEDERATED training of the index network, stacked: against the lanes, and as recorded steps."""

import functools

import numpy as np
import pytest
import torch
from cuda_stand_in import CudaStandIn

from c2v_sim.data.partition import Partition
from c2v_sim.index import dsa_ign, stacked, training
from c2v_sim.index.config import IndexConfig
from c2v_sim.index.dsa_ign import WIDTH, build_network, losses
from c2v_sim.training.cuda_lane import CudaLane
from c2v_sim.training.lanes import LANES

SIZES = (3, 17, 8, 24, 2, 11)
CPU = torch.device("cpu")


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Dropout by seeds, and whether clients are stacked: on "cpu" too."""
    monkeypatch.setattr(dsa_ign, "by_seeds", lambda device: True)
    choose = stacked.choose_path

    def chosen(stack):
        path = choose(torch.device("cuda"), len(SIZES) if stack else 1)
        monkeypatch.setattr(training, "choose_path", lambda *_: path)

    return chosen


def trained(lanes=1, **settings):
    """The server's row and the curve, after two rounds of uneven clients."""
    draw = torch.Generator().manual_seed(0)
    images, labels = (torch.randn(n, WIDTH, generator=draw) for n in (sum(SIZES), 4))
    y = torch.randint(4, (sum(SIZES),), generator=draw)
    ids = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    partition = Partition(tuple(ids), tuple(i[:1] for i in ids), "natural")
    config = IndexConfig(
        strategy="federated", epochs=4, local_epochs=2, participation=1.0, hidden=24,
        batch_size=8, lanes=lanes, device="cpu", **settings,
    )  # fmt: skip
    pairs = training.Pairs(0.05 * images, labels, y, CPU)
    network, result = training.train_network(pairs, partition, config)
    row = torch.cat([p.detach().flatten() for p in network.parameters()])
    return row, torch.tensor(result.curve)


@pytest.mark.parametrize(
    "settings", [{"dropout": 0.1}, {"dropout": 0.0, "decoder": "mlp", "omit_loss": ("orth",)}]
)
def test_agrees_with_the_lanes(as_on_a_gpu, settings):
    ends = []
    for stack in (True, False):
        as_on_a_gpu(stack)
        ends.append(trained(**settings))
    (row, curve), (expected, curve_of_lanes) = ends
    torch.testing.assert_close(curve, curve_of_lanes, rtol=1e-4, atol=1e-5)
    start = build_network(settings.get("decoder", "linear"), 24, settings["dropout"], 0)
    moved = (expected - torch.cat([p.detach().flatten() for p in start.parameters()])).abs()
    assert moved.max() > 5e-3
    # Adam divides by the size of a gradient, so that rounding of one near 0 shows in full.
    difference = (row - expected).abs()
    assert difference.median() < 1e-6
    assert difference.mean() < 0.01 * moved.mean()


def test_same_bits_for_any_number_of_lanes_and_recorded(as_on_a_gpu, monkeypatch):
    as_on_a_gpu(True)
    plain, curve = trained(lanes=1)
    assert torch.equal(plain, trained(lanes=3)[0])
    cuda = CudaStandIn()
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setitem(LANES, "cpu", functools.partial(CudaLane, cuda=cuda, runs_first=1))
    recorded, curve_of_recorded = trained(lanes=1)
    assert sum(graph.replays for graph in cuda.graphs) > 4
    assert torch.equal(plain, recorded)
    assert torch.equal(curve, curve_of_recorded)


@pytest.mark.parametrize("rate", [0.0, 0.2])
def test_losses_are_those_of_each_client_in_float64(monkeypatch, rate):
    """Rounding is all that differs from one network at a time; padding is without effect."""
    monkeypatch.setattr(dsa_ign, "by_seeds", lambda device: True)
    networks = [build_network("linear", 8, rate, seed).double().train() for seed in range(3)]
    draw = torch.Generator().manual_seed(1)
    d, label = (torch.randn(3, 5, WIDTH, generator=draw).double() for _ in range(2))
    counts = torch.tensor([5, 0, 3])
    names = [name for name, _ in networks[0].named_parameters()]
    parameters = {n: torch.stack([dict(net.named_parameters())[n] for net in networks])
                  for n in names}  # fmt: skip
    generators = [torch.Generator().manual_seed(7 + i) for i in range(3)]
    seeds = torch.stack([dsa_ign.draw_seeds(g, CPU) for g in generators], dim=-1)
    got = stacked.stacked_losses(parameters, d, label, counts, rate, seeds if rate else None)
    for i, (network, n) in enumerate(zip(networks, counts.tolist(), strict=True)):
        for layer in network.layers:
            layer.generator = torch.Generator().manual_seed(7 + i)
        wanted = losses(network, d[i, :n], label[i, :n]) if n else torch.zeros(4).double()
        torch.testing.assert_close(got[i], wanted, rtol=1e-9, atol=1e-12)


def test_a_cpu_never_stacks():
    assert not stacked.choose_path(CPU, 10).stacked
    assert not stacked.choose_path(torch.device("cuda"), 3).stacked
    assert stacked.choose_path(torch.device("cuda"), 4).stacked
