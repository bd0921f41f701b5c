"""The checks of a GPU on the CPU: they pass where all is right, and fail where it is not."""

import functools
import json

import pytest
import torch
from cuda_stand_in import CudaStandIn

from c2v_sim import doctor
from c2v_sim.algorithms import Algorithm
from c2v_sim.gpu_check import checks, operators, training
from c2v_sim.gpu_check.checks import all_checks
from c2v_sim.gpu_check.index import check_index
from c2v_sim.gpu_check.operators import CHECKED, check_operator, without_check
from c2v_sim.gpu_check.outcomes import CheckFailed, NotHere, run_all, what_to_report
from c2v_sim.gpu_check.training import Case, check_rounds, check_stacked
from c2v_sim.ops._dispatch import OPERATORS, Operator
from c2v_sim.training.cuda_lane import CudaLane
from c2v_sim.training.lanes import LANES

CPU = torch.device("cpu")
MLP = Case(side=8)


@pytest.fixture
def few_repeats(monkeypatch):
    monkeypatch.setattr(operators, "median_seconds", lambda work, device: work() and 1e-3)


@pytest.fixture
def stand_in(monkeypatch):
    """Lanes of a GPU from now on."""
    cuda = CudaStandIn()
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setitem(LANES, "cpu", functools.partial(CudaLane, cuda=cuda, runs_first=1))
    return cuda


def test_every_operator_is_checked():
    assert without_check(OPERATORS) == set()


@pytest.mark.parametrize("name", sorted(set(CHECKED) - {"dropout_mask"}))
def test_operators_pass(name, few_repeats):
    facts = check_operator(name, CPU, 1e9, 1e9)
    assert facts["native"]["largest error"] < 1e-3
    assert facts["native"]["of bandwidth" if "of bandwidth" in facts["native"] else "of sgemm"] > 0


def test_an_operator_for_gpus_alone_is_told(few_repeats):
    with pytest.raises(NotHere, match="no kernel dropout_mask for the CPU"):
        check_operator("dropout_mask", CPU, 1e9, 1e9)


def test_a_wrong_operator_is_found(few_repeats, monkeypatch):
    right = Operator.__call__

    def wrong(self, *args, backend=None):
        out = right(self, *args, backend=backend)
        if backend == "native" and args[0].storage_offset():  # only where memory is unaligned
            args[2][..., -1] += 1e-3
        return out

    monkeypatch.setattr(Operator, "__call__", wrong)
    with pytest.raises(CheckFailed, match=r"native at \(3, 7\), unaligned, result 0: error") as e:
        check_operator("weighted_sum", CPU, 1.0, 1.0)
    assert "native at (3, 7), result" not in str(e.value)


def test_a_backend_that_is_not_there_is_told(monkeypatch):
    monkeypatch.setattr(Operator, "unavailable", lambda *_: "no compiler")
    with pytest.raises(NotHere, match="native: no compiler"):
        check_operator("weighted_sum", CPU, 1.0, 1.0)


def test_replayed_rounds_have_the_bits_of_eager_ones(stand_in):
    facts = check_rounds(MLP, CPU, same=True)
    assert all(facts[way]["same bits"] for way in training.WAYS)
    recorded = [facts[way]["recorded"] for way in training.WAYS]
    assert recorded[0] == recorded[2] == 0
    assert recorded[1] == 3  # batches of 8, and shorter ones that are padded to 2 and 4
    assert recorded[3] >= 3
    assert sum(graph.replays for graph in stand_in.graphs) > 100
    assert facts["trained distance"] > 1e-3


def test_stacked_rounds_are_recorded_and_near_to_the_lanes(stand_in):
    facts = check_stacked(Case("cnn", 16, (("local_epochs", 1),)), CPU, same=True)
    recorded = [facts[way]["recorded"] for way in training.STACKED_WAYS]
    assert recorded[0] == recorded[2] == 0
    assert min(recorded[1], recorded[3]) > 0
    assert 0 < facts["off the lanes"] < 1e-4


def test_a_step_that_a_graph_gets_wrong_is_found(stand_in, monkeypatch):
    def loss(self, client, x, y, z, logits):
        return torch.nn.functional.cross_entropy(logits, y) * (1 + client.id)

    monkeypatch.setattr(Algorithm, "loss", loss)
    with pytest.raises(CheckFailed, match="replayed, 1 lane has other bits than eager, 1 lane"):
        check_rounds(MLP, CPU, same=True)
    with pytest.raises(CheckFailed, match=r"replayed, 1 lane is .* off, after a way of"):
        check_rounds(MLP, CPU, same=False)


def test_the_index_has_the_same_bits_on_any_lanes():
    assert check_index(CPU, True)["same bits"]


def test_the_command_goes_on_after_a_failure_and_says_what_to_report(tmp_path, monkeypatch, capsys):
    def fails():
        raise CheckFailed("one and one is three", {"sum": 3})

    def breaks():
        raise ZeroDivisionError("by zero")

    def cannot():
        raise NotHere("no GPU")

    some = {"a": fails, "b": breaks, "c": cannot, "d": lambda: {"speed": 1.5}}
    monkeypatch.setattr(doctor, "all_checks", lambda device: some)
    path = tmp_path / "facts.json"
    assert doctor.main(["--gpu-check", "--output", str(path)]) == 1
    text = capsys.readouterr().out
    assert "failed   a: one and one is three" in text
    assert "1 checks passed, 2 failed, 1 not done on a machine without a GPU (a, b)." in text
    found = json.loads(path.read_text())
    assert [c["status"] for c in found["checks"]] == ["failed", "failed", "not done", "passed"]
    assert found["checks"][0]["facts"] == {"sum": 3}
    assert "ZeroDivisionError: by zero" in found["checks"][1]["facts"]["traceback"]
    assert found["machine"]["torch"].startswith(torch.__version__)
    monkeypatch.setattr(doctor, "all_checks", lambda device: {"d": some["d"]})
    assert doctor.main(["--gpu-check", "--output", str(path)]) == 0


def test_the_sentence_of_a_gpu():
    outcomes = list(run_all({"a": dict}))
    sentence = what_to_report("x.json", outcomes, "A100")
    assert (
        "the file x.json and the words: 1 checks passed, 0 failed, 0 not done on A100." in sentence
    )


def test_what_a_cpu_cannot_do_is_told():
    wanted = {name: all_checks(CPU)[name] for name in checks.FOR_A_GPU}
    assert all(o.status == "not done" and checks.NO_GPU in o.why for o in run_all(wanted))
    on_a_gpu = all_checks(torch.device("cuda"))
    assert "rounds of resnet18, not deterministic" in on_a_gpu
    assert not set(checks.FOR_A_GPU) & set(on_a_gpu)
