"""kill -9 at 28 points, and every resume ends in the bits of the run that nobody killed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
DRIVER = Path(__file__).parents[1] / "support" / "kill_driver.py"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kills")
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    environment = os.environ | threads | {"C2V_DATA": str(folder / "data")}
    command = [sys.executable, "-P", str(DRIVER), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "results.json").read_text())


def test_the_points_are_of_every_kind(results):
    kinds = {(c["command"], p[0]) for c in results["cases"].values() for p in c["points"]}
    assert len(results["cases"]) == 28
    assert kinds == {
        *(("run", kind) for kind in ("file", "client", "evaluate", "evaluated", "time")),
        *(("index", kind) for kind in ("file", "step", "save", "saved")),
        *(("improved", kind) for kind in ("file", "step", "saved", "client")),
        *(("pair", kind) for kind in ("file", "step", "evaluated", "client")),
    }
    assert results["counts"]["run"]["file"] > 60


@pytest.mark.parametrize("number", range(28))
def test_a_killed_process_leaves_nothing_that_shows(results, number):
    name, case = list(results["cases"].items())[number]
    assert case["statuses"] == [-9] * len(case["points"]), f"{name}\n{case['log']}"
    assert case["code"] == 0, f"{name}\n{case['log']}"
    assert case["bits"] == results["reference"][case["command"]], name
