import re
import subprocess
import sys

import torch

from c2v_sim import doctor
from c2v_sim.ops import _dispatch

CPU = torch.device("cpu")


def test_lists_every_operator_and_backend(capsys):
    doctor.main([])
    text = capsys.readouterr().out
    assert torch.__version__ in text
    lines = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    assert {"client_scores", "sgd_step", "weighted_sum"} <= set(_dispatch.OPERATORS)
    for name in _dispatch.OPERATORS:
        assert lines[name].count("yes") + lines[name].count("no (") == len(_dispatch.BACKENDS)
        assert lines[name].count("*") == 1
    assert "bandwidth" not in text
    assert re.search(r"--deterministic \(the default\) costs [+-]\d+ % of a training step", text)


def test_says_how_models_are_trained_and_why():
    paths = doctor.training_paths(CPU)
    linear = "stacked, many clients in one computation: the model is nothing but one Linear layer"
    assert paths["linear"].startswith(linear)
    assert "616,610 parameters, and above 200,000 stacking gains little" in paths["mlp"]
    assert "its part conv1 is a Conv2d" in paths["cnn"]
    assert paths["cnn"].startswith("one client at a time on each lane: the model is no chain")


def test_says_why_not(monkeypatch):
    monkeypatch.setattr(_dispatch, "native_missing", "the extension is not built; run `make`")
    _dispatch._has_kernel.cache_clear()
    rows = doctor.availability(CPU)
    _dispatch._has_kernel.cache_clear()
    for row in rows.values():
        assert row["native"] == "the extension is not built; run `make`"
        assert row["cuda"] == "CUDA kernels take CUDA tensors"
        assert row["torch"] is None
    text = doctor.table(rows, dict.fromkeys(rows, "torch"))
    assert "(1) the extension is not built; run `make`" in text
    assert text.count("the extension is not built") == 1
    assert text.count("yes *") == len(rows)


def test_measures_small_sizes():
    limits = doctor.measure(CPU, elements=1000, size=16)
    assert limits["bandwidth"] > 0
    assert limits["sgemm"] > 0


def test_the_cost_of_determinism_leaves_the_mode_alone():
    before = torch.get_deterministic_debug_mode()
    low, median, high = doctor.deterministic_cost(CPU, pairs=3, batch=2)
    assert 0 < low <= median <= high
    assert torch.get_deterministic_debug_mode() == before


def test_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-P", "-m", "c2v_sim.doctor"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "weighted_sum" in done.stdout
