"""examples/flower_app.py on Flower's real simulation engine: what it and the simulator choose."""

import re

import pytest
from example_scripts import printed


@pytest.mark.slow
def test_flower_and_the_simulator_choose_and_weigh_alike(monkeypatch):
    pytest.importorskip("flwr", reason="flwr is not there (pip install 'c2v_sim[flower]')")
    pytest.importorskip("ray", reason="ray is not there (pip install 'c2v_sim[flower]')")
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # or a busy machine lets the clients starve
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    *lines, last = printed("flower_app.py", timeout=900)
    found = {"flower": [], "c2v_sim": []}
    for line in lines:
        if match := re.fullmatch(r"(flower|c2v_sim) (round \d+: clients \[.*\] weights .*)", line):
            found[match[1]].append(match[2])
    assert len(found["flower"]) == 4
    assert found["flower"] == found["c2v_sim"]
    apart = re.fullmatch(r"the models differ by at most (.*)", last)
    assert float(apart[1]) < 1e-6
