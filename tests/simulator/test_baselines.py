"""The baselines that bench/rounds.py measures against train what the simulator trains."""

import importlib
import itertools
import sys
from pathlib import Path

import pytest
import torch
from federations import image_federation

from c2v_sim import RunConfig, Simulator
from c2v_sim.models import build_model
from c2v_sim.system.machine import intra_op_threads
from c2v_sim.training.sampling import uniform

BENCH = str(Path(__file__).parents[2] / "bench")


@pytest.mark.parametrize("baseline", ["plain_fedavg", "tight_fedavg"])
def test_a_baseline_agrees_with_the_simulator_on_full_batches(baseline, monkeypatch):
    monkeypatch.syspath_prepend(BENCH)
    rounds, cases = (importlib.import_module(name) for name in (baseline, "round_cases"))
    monkeypatch.delitem(sys.modules, baseline)
    federation = image_federation(clients=6)
    # Every client's samples are one batch, whose order is immaterial: random streams differ.
    settings = RunConfig(
        model="resnet8", participation=0.5, rounds=2, local_epochs=2, batch_size=64, lr=0.01, seed=5
    )
    simulator = Simulator(federation, settings)
    simulator.run()
    simulator.close()
    model = build_model("resnet8", classes=4, input_shape=(16, 16, 3), seed=5)
    begun = model.fc.weight.detach().clone()
    work = rounds.rounds(
        model,
        cases.normalised(federation),
        federation.dataset.y_train,
        federation.partition.train,
        (uniform(5, t, federation.partition.sizes, 3) for t in itertools.count(1)),
        epochs=2,
        batch_size=64,
        sgd={"lr": 0.01, "momentum": 0.0, "weight_decay": settings.weight_decay},
    )
    with intra_op_threads(1):  # more of them are slow beside other processes
        for _ in range(settings.rounds):
            trained = next(work)
    state, wanted = trained.state_dict(), simulator.global_model()
    assert not torch.allclose(begun, wanted["fc.weight"], atol=1e-3)
    for name in (n for n, t in wanted.items() if t.is_floating_point()):
        torch.testing.assert_close(state[name], wanted[name], rtol=1e-4, atol=1e-4, msg=name)
