"""--shard i/n: sweeps that share a directory run every cell once, and end in the same table."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from c2v_sim.sweep.__main__ import main
from c2v_sim.sweep.file import read_sweep, state
from c2v_sim.sweep.shards import Shard
from c2v_sim.sweep.tables.write import FILES

SWEEP = """
title = "Tiny"
[base]
model = "linear"
train_size = 300
test_size = 60
clients = 6
participation = 0.5
local_epochs = 1
batch_size = 16
rounds = 2
index = "feature-average"
improve = ["sampling"]
tau = 0.1
[axes]
algorithm = ["fedavg", "fedprox"]
"""
EXAMPLES = Path(__file__).parents[2] / "examples"


def without_times(table):
    """The lines of a table, but for that with what the clock said."""
    return [line for line in table.read_text().splitlines() if "Time: " not in line]


@pytest.fixture
def cells(tmp_path):
    (tmp_path / "tiny.toml").write_text(SWEEP)
    return read_sweep(tmp_path / "tiny.toml").cells


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0"])
def test_a_shard_that_is_none_is_refused(tmp_path, capsys, text):
    (tmp_path / "tiny.toml").write_text(SWEEP)
    assert main([str(tmp_path / "tiny.toml"), "--shard", text]) == 2
    assert f"--shard must be i/n with i from 1 to n, such as 2/8, got {text}" in (
        capsys.readouterr().err
    )


def test_every_cell_is_the_own_of_one_shard(cells):
    many = cells * 5
    parts = [Shard(i, 3).own(many) for i in (1, 2, 3)]
    assert sorted(c.name for part in parts for c in part) == sorted(c.name for c in many)
    assert {len(part) for part in parts} == {3, 4}


def test_a_cell_is_held_by_one_shard(tmp_path, cells):
    first, second = Shard(1, 2), Shard(2, 2)
    assert first.take(tmp_path, cells[0])
    assert not second.take(tmp_path, cells[0])
    assert second.take(tmp_path, cells[1])
    first.give_back(cells[0])
    assert second.take(tmp_path, cells[0])
    for cell in cells[:2]:
        second.give_back(cell)


def test_what_another_shard_has_ended_is_left_alone(tmp_path, cells):
    folder = tmp_path / "cells"
    folder.mkdir()
    (folder / f"{cells[0].name}.failed").write_text("{}")
    assert state(tmp_path, cells[0]) == "failed"
    assert not Shard(1, 1).take(tmp_path, cells[0])
    assert Shard(1, 1).take(tmp_path, cells[1])


@pytest.mark.slow
def test_two_shards_at_the_same_time_leave_the_table_of_one_sweep(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("C2V_DATA", str(tmp_path / "data"))
    (tmp_path / "tiny.toml").write_text(SWEEP)
    file, out = str(tmp_path / "tiny.toml"), tmp_path / "shared"
    command = [sys.executable, "-P", "-m", "c2v_sim.sweep", file, "--out", str(out), "--jobs", "1"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    second = subprocess.Popen([*command, "--shard", "2/2"], env=environment)
    assert main([file, "--out", str(out), "--jobs", "1", "--shard", "1/2"]) == 0
    assert second.wait() == 0
    names = [cell.name for cell in read_sweep(file).cells]
    starts = [(out / "cells" / f"{name}.log").read_text().count("run directory:") for name in names]
    assert starts == [2] * len(names)  # one at the start and one at the end of a run
    assert main([file, "--out", str(tmp_path / "alone")]) == 0
    for name in FILES:
        assert without_times(out / name) == without_times(tmp_path / "alone" / name)
    assert "2 of 2 cells are done already" not in capsys.readouterr().err


@pytest.mark.parametrize("name", ["sweep_array.sbatch", "run_ranks.sbatch"])
def test_the_batch_files_are_bash(name):
    subprocess.run(["bash", "-n", str(EXAMPLES / name)], check=True)
