"""However many ranks share a run, it ends in the same bits."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rank_driver import CASES, CONTINUED, SIZES

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """Number of ranks -> case -> how it ended."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SUPPORT)}
    command = [sys.executable, "-P", str(SUPPORT / "rank_driver.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return {size: json.loads((folder / f"{size}.json").read_text()) for size in SIZES}


@pytest.mark.parametrize("size", SIZES[1:])
@pytest.mark.parametrize("case", [*CASES, *(f"{name}, continued" for name in CONTINUED)])
def test_the_bits_of_one_process(ends, case, size):
    alone, shared = ends[1][case], ends[size][case]
    assert shared["records"] == alone["records"]
    assert shared == alone


def test_cases_differ(ends):
    assert len({end["state"] for end in ends[1].values()}) == len(CASES)  # a continued one is equal
    trained = [record["train_loss"] for record in ends[1]["feddyn"]["records"]]
    assert len(set(trained)) == 3


@pytest.mark.parametrize("name", CONTINUED)
def test_a_continued_run_ends_like_the_whole_one(ends, name):
    assert ends[1][f"{name}, continued"]["state"] == ends[1][name]["state"]
