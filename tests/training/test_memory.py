"""What a run takes is known before it starts, and said in a sentence."""

import shutil
from types import SimpleNamespace

import psutil
import pytest
import torch
from federations import bits, image_federation, simulator_with

from c2v_sim import RunConfig, Simulator
from c2v_sim.models import build_model
from c2v_sim.system.text import in_bytes
from c2v_sim.training import memory
from c2v_sim.training.arena import layout_of
from c2v_sim.training.client_rows import Budget, ClientRows
from c2v_sim.training.memory import check_fits, plan_rows, row_budget

CPU = torch.device("cpu")
GB = 10**9


@pytest.fixture
def free(monkeypatch):
    """Set how much memory and disk this machine seems to have free."""

    def set_free(host, disk=500 * GB):
        monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=host))
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=disk))

    return set_free


def resnet18_rows(budget, clients=1000, dtype=torch.float32):
    """FedDyn's h; nothing is allocated before a row is written."""
    width = layout_of(
        build_model("resnet18", classes=10, input_shape=(32, 32, 3), seed=0)
    ).trainable
    return ClientRows("h", clients, width, device=CPU, budget=budget, dtype=dtype)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (3_514_152, "3.51 MB"),
        (44_695_848, "44.7 MB"),
        (4.47e10, "44.7 GB"),
    ],
)
def test_bytes_for_people(size, text):
    assert in_bytes(size) == text


def test_a_thousand_resnet18_are_planned_to_spill(free):
    free(14 * GB)
    budget = row_budget(CPU, 0, None)
    assert budget.host == 7 * GB
    rows = resnet18_rows(budget)
    plan = plan_rows([rows], budget, 1000)
    assert plan.sentence == (
        "44.7 MB of state per client, 44.7 GB for 1000 clients: 156 fit in host memory, "
        "37.7 GB go to a memory-mapped file (slower)"
    )
    assert budget.host == 7 * GB  # a plan takes nothing
    assert rows.places == []


def test_a_thousand_resnet18_are_refused_where_the_disk_is_full(free):
    free(14 * GB, disk=20 * GB)
    budget = row_budget(CPU, 0, None)
    message = (
        r"the state of 1000 clients needs 44.7 GB \(44.7 MB each\): 7.0 GB fit in memory and .* "
        r"has 20.0 GB free for the rest; take a smaller model, fewer clients or rounds, or "
        r"--state-dtype bfloat16"
    )
    with pytest.raises(ValueError, match=message):
        plan_rows([resnet18_rows(budget)], budget, 1000)
    half = resnet18_rows(budget, dtype=torch.bfloat16)
    assert plan_rows([half], budget, 1000).file == pytest.approx(15.3 * GB, rel=0.01)
    assert "22.3 MB of state per client" in plan_rows([half], budget, 1000).sentence


def test_the_plan_is_what_happens():
    budget = Budget(0, 1_000_000)
    rows = ClientRows("h", 20, 30_000, device=CPU, budget=budget)  # 120 KB per client
    plan = plan_rows([rows], budget, 20)
    assert "8 fit in host memory, 1.44 MB go to" in plan.sentence
    for client in range(20):
        rows.write(client, torch.zeros(30_000))
    sizes = {"host": 0, "file": 0}
    for place, chunk in zip(rows.places, rows._chunks, strict=True):
        sizes[place] += len(chunk)
    assert sizes["host"] == 8
    assert sizes["file"] >= 12


def test_nobody_keeps_state_without_need():
    assert plan_rows([], Budget(0, 0), 10).sentence == "no state is kept for clients"


def test_a_stated_budget_is_an_upper_limit(free):
    free(16 * GB)
    assert row_budget(CPU, 1.5, None).host == 1.5 * GB
    assert row_budget(CPU, 100.0, None).host == 8 * GB


def test_a_run_that_cannot_fit_is_refused_before_it_allocates(free, monkeypatch):
    free(4 * GB)
    federation = image_federation(clients=100, smallest=1, side=8)

    def must_not_be_called(*args, **kwargs):
        raise AssertionError("allocated before the check")

    monkeypatch.setattr("c2v_sim.simulator.build.Arena", must_not_be_called)
    config = RunConfig(model="resnet18", participation=1.0, lanes=2)
    message = (
        r"this run needs 4.9 GB on cpu \(100 models of the cohort 4.5 GB, 2 lanes 358 MB, the "
        r"global model 44.7 MB\), and 3.4 GB of 4.0 GB free may be used"
    )
    with pytest.raises(ValueError, match=message):
        Simulator(federation, config)


def test_what_fits_is_not_refused(free):
    free(100)
    check_fits(CPU, {"a": 80, "b": 5})
    with pytest.raises(ValueError, match="a 80 B, b 6 B"):
        check_fits(CPU, {"a": 80, "b": 6, "nothing": 0})


@pytest.mark.parametrize("algorithm", ["feddyn", "moon"])
def test_the_place_of_the_state_does_not_show_in_the_result(algorithm, tmp_path):
    federation = image_federation(clients=6)

    def run(gigabytes):
        config = RunConfig(
            algorithm=algorithm, model="linear", rounds=4, participation=0.5, local_epochs=1,
            batch_size=8, feddyn_alpha=1.0, moon_mu=1.0, improve=("sampling", "local"),
            state_memory=gigabytes,
        )  # fmt: skip
        simulator = simulator_with(federation, config, scratch=tmp_path)
        simulator.run()
        simulator.close()
        rows = next(iter(simulator._state.parts.rows.values()))
        return rows, bits(simulator.state(), ordered=False)

    all_fit, wanted = run(0.0)
    assert all_fit.places == ["host"]
    for rows_that_fit, places in ((0.1, ["file"]), (2.5, ["host", "file"])):
        rows, got = run(rows_that_fit * all_fit.row_bytes / 1e9)
        assert rows.places == places
        assert got == wanted


def test_bfloat16_state_takes_half_and_hardly_changes_the_model():
    federation = image_federation(clients=6)
    models = []
    for dtype in ("float32", "bfloat16"):
        config = RunConfig(
            algorithm="feddyn", model="linear", rounds=4, participation=0.5, local_epochs=1,
            batch_size=8, lr=1e-3, state_dtype=dtype,
        )  # fmt: skip
        simulator = Simulator(federation, config)
        simulator.run()
        simulator.close()
        models.append(simulator.server.data[0].clone())
        rows = simulator.algorithm.h
        assert rows.row_bytes == (4 if dtype == "float32" else 2) * rows.width
        kept = sum(rows.read(i, torch.empty(rows.width)) for i in range(6))
        torch.testing.assert_close(simulator.algorithm.h_sum, kept, rtol=1e-5, atol=1e-6)
    assert not torch.equal(*models)
    torch.testing.assert_close(*models, rtol=0.02, atol=1e-3)


def test_the_simulator_says_how_much_every_client_takes():
    federation = image_federation(clients=6)
    config = RunConfig(algorithm="moon", rounds=2, participation=0.34, state_memory=1e-9)
    plan = Simulator(federation, config).row_plan
    assert plan.participants == 4  # two rounds of two
    assert plan.sentence.endswith("none fit in memory, 7.71 MB go to a memory-mapped file (slower)")
    assert memory.in_bytes(plan.per_client) in plan.sentence
