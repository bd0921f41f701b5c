"""Failing disks, kills, long runs and company: scripts of this folder, each in its own process."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
POINTS = 28


def script(name, *options):
    """Run a script of this folder; it ends with 0, or its output says what was wrong."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    paths = os.pathsep.join([str(HERE), str(HERE.parent / "support")])
    command = [sys.executable, "-P", str(HERE / name), *options]
    environment = os.environ | threads | {"PYTHONPATH": paths}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(not shutil.which("cc") or sys.platform != "linux", reason="needs cc and Linux")
def test_a_failing_call_loses_nothing(tmp_path):
    said = script("driver.py", "--points", str(POINTS), "--keep", str(tmp_path))
    assert said.splitlines()[-1].startswith(f"{POINTS} points of ")
    cases = json.loads((tmp_path / "results.json").read_text())
    assert all(case["call"] and not case["problems"] for case in cases)
    kinds = {case["error"] for case in cases}
    assert kinds == {"ENOSPC", "EIO", "EACCES", "full from here", "killed"}
    assert {case["command"] for case in cases} == {"run", "index", "sweep", "report"}
    ends = {case["codes"][0] for case in cases}
    assert {0, 1, -9} <= ends  # went on, refused, killed: all three were seen


def test_a_long_run_grows_by_its_records_alone():
    assert script("soak.py", "--rounds", "100").splitlines()[-1] == "flat"


def test_commands_at_the_same_time_end_in_the_bits_of_each_alone():
    script("together.py")
