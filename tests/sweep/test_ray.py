"""--ray: a sweep on a cluster of two nodes, one of which dies, ends in the table of one machine."""

import sys
import threading
import time

import pytest

from c2v_sim.run.files import count_rounds
from c2v_sim.sweep.__main__ import main
from c2v_sim.sweep.file import cell_folder, read_sweep
from c2v_sim.sweep.tables.write import FILES

SWEEP = """
title = "Tiny"
[base]
model = "linear"
train_size = 600
test_size = 60
clients = 6
participation = 0.5
local_epochs = 10
batch_size = 16
rounds = 16
checkpoint_every = 2
lanes = 1
index = "feature-average"
improve = ["sampling"]
tau = 0.1
[axes]
algorithm = ["fedavg", "feddyn"]
"""


def test_without_ray_the_remedy_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    (tmp_path / "tiny.toml").write_text(SWEEP)
    assert main([str(tmp_path / "tiny.toml"), "--out", str(tmp_path / "out"), "--ray"]) == 2
    assert "pip install 'c2v_sim[ray]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_ray_takes_neither_shards_nor_jobs(tmp_path, capsys):
    (tmp_path / "tiny.toml").write_text(SWEEP)
    assert main([str(tmp_path / "tiny.toml"), "--ray", "--shard", "1/2"]) == 2
    assert "leave --shard and --jobs out" in capsys.readouterr().err


@pytest.fixture
def cluster(monkeypatch, tmp_path):
    """Two nodes beside the driver's, of one core each."""
    pytest.importorskip("ray", reason="ray is not installed (pip install 'c2v_sim[ray]')")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("C2V_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # or a busy machine lets them starve
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    yield made, [made.add_node(num_cpus=1) for _ in range(2)]
    import ray

    ray.shutdown()
    made.shutdown()


@pytest.mark.slow
def test_a_node_dies_and_the_table_is_that_of_one_machine(cluster, tmp_path, capsys):
    made, nodes = cluster
    file, out = tmp_path / "tiny.toml", tmp_path / "on-ray"
    file.write_text(SWEEP)
    cells = read_sweep(file).cells
    at_kill = []

    def kill_a_node() -> None:
        begun, end = [], time.monotonic() + 300
        while len(begun) < 2 and time.monotonic() < end:  # one cell on each node
            begun = [c.name for c in cells if count_rounds(cell_folder(out, c)) >= 3]
            time.sleep(0.02)
        at_kill.extend(begun)
        made.remove_node(nodes[0], allow_graceful=False)

    killer = threading.Thread(target=kill_a_node, daemon=True)
    killer.start()
    assert main([str(file), "--out", str(out), "--ray", made.address]) == 0
    killer.join(timeout=60)
    assert len(at_kill) == 2
    assert capsys.readouterr().err.count("index of fedavg and 1 more:") == 1  # built once
    logs = [(out / "cells" / f"{cell.name}.log").read_text() for cell in cells]
    assert sum("settings: resumed" in log for log in logs) == 1  # what the dead node had
    assert main([str(file), "--out", str(tmp_path / "alone")]) == 0
    for name in FILES:
        lines = [(folder / name).read_text().splitlines() for folder in (out, tmp_path / "alone")]
        on_ray, alone = ([line for line in one if "Time: " not in line] for one in lines)
        assert on_ray == alone
