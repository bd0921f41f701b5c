"""A net over every file that the program reads: damaged in many ways, none may do harm."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from file_readers import READERS

NET = Path(__file__).parent / "support" / "file_net.py"
MOST = 60  # files of a kind; `make fuzz` reads all of them


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    command = [sys.executable, "-P", str(NET), str(folder), str(MOST)]
    environment = os.environ | {"PYTHONPATH": str(NET.parent), "MPLBACKEND": "agg"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    found = json.loads((folder / "results.json").read_text())
    assert list(found) == list(READERS), done.stderr
    assert done.returncode == any(problems for _, problems in found.values())
    return found


@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_refused_by_name(results, name):
    """By a sentence that names the file, without executing it, within memory and time."""
    count, problems = results[name]
    assert problems == []
    assert count >= 40
