"""A run over two hosts (network namespaces joined by a cable): killed, cut off, the same bits."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
SUPPORT = Path(__file__).parents[1] / "support"


def why_not():
    """Why no namespaces can be made here; empty where they can."""
    if sys.platform != "linux" or shutil.which("ip") is None or shutil.which("unshare") is None:
        return "network namespaces need Linux with `ip` and `unshare`"
    command = ["unshare", "--net", "--uts", "ip", "link", "add", "c2v0", "type", "veth"]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode or not hasattr(ctypes.CDLL(None), "setns"):
        return f"network namespaces cannot be made here: {made.stderr.strip()}"
    return ""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    if reason := why_not():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("hosts")
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SUPPORT)}
    environment = os.environ | environment | {"C2V_DATA": str(folder / "data")}
    command = [sys.executable, "-P", str(SUPPORT / "rank_hosts.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "results.json").read_text())


def errors(said):
    return [line for line in said.splitlines() if ": error: " in line]


def test_two_hosts_train_the_bits_of_one(results):
    assert results["whole"]["codes"] == [[0, 0]], results["whole"]["said"]
    assert results["whole"]["bits"] == results["alone"]["bits"]


def test_a_rank_killed_on_another_host_is_started_anew(results):
    killed = results["killed"]
    assert killed["codes"] == [[1, -9], [0, 0]], killed["said"]
    assert len(errors(killed["said"])) == 1
    assert "rank 0 lost the others" in errors(killed["said"])[0]
    assert killed["bits"] == results["alone"]["bits"]


def test_a_cable_that_is_cut_ends_both_hosts_with_the_way_to_go_on(results):
    cut = results["cut"]
    assert cut["codes"] == [[1, 1]], cut["said"]
    told = errors(cut["said"])
    assert len(told) == 2  # the hosts cannot ask one another who tells
    for rank, line in enumerate(sorted(told)):
        assert f"rank {rank} lost the others" in line
        assert "round 3; a resume goes on after round 2: python -m c2v_sim.run --resume" in line
    assert cut["resumed"] == [0]
    assert cut["bits"] == results["alone"]["bits"]
