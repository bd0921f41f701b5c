"""Whole sweeps of tiny runs: side by side, failing, killed, and gone on with, to the same bits."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from c2v_sim.config import RunConfig, index_settings
from c2v_sim.run import __main__ as run
from c2v_sim.run.build import build_federation
from c2v_sim.sweep import __main__ as sweep_command
from c2v_sim.sweep import runner
from c2v_sim.sweep.__main__ import check_same, main, parse_settings
from c2v_sim.sweep.estimate import Estimate, index_seconds
from c2v_sim.sweep.file import read_sweep
from c2v_sim.sweep.jobs import Job
from c2v_sim.sweep.progress import SweepProgress
from c2v_sim.system.errors import ConfigError
from c2v_sim.system.files import LOCK
from c2v_sim.system.settings import Affects, values_affecting
from c2v_sim.system.text import duration

BASE = """
[base]
model = "linear"
train_size = 300
test_size = 60
clients = 6
participation = 0.5
local_epochs = 1
batch_size = 16
rounds = 3
"""
GRID = f"""
title = "Tiny"
{BASE}
index = "feature-average"
[axes]
algorithm = ["fedavg", "feddyn"]
[axes.case]
original = {{}}
steered = {{ improve = ["sampling", "aggregation"], tau = 0.1 }}
wild = {{ lr = 1e30 }}
[[skip]]
algorithm = "feddyn"
case = "wild"
"""
SEEDS = "[axes]\nseed = [0, 1]\n"


PACS = ["--set", "dataset=pacs", "--set", "train_size=0", "--set", "test_size=0"]


@pytest.fixture(autouse=True, scope="module")
def _data(tmp_path_factory):
    """Rendered images and indices are cached outside the user's folder."""
    before = os.environ.get("C2V_DATA")
    os.environ["C2V_DATA"] = str(tmp_path_factory.getbasetemp() / "data")
    yield
    os.environ.pop("C2V_DATA")
    if before:
        os.environ["C2V_DATA"] = before


def outcome(folder):
    """What must be the same, the clock left out."""
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    records = [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]
    return records, (folder / "model.safetensors").read_bytes()


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text())


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """A sweep side by side, one cell of which fails; its directory, file and exit code."""
    folder = tmp_path_factory.mktemp("sweep")
    file = folder / "grid.toml"
    file.write_text(GRID)
    code = main([str(file), "--out", str(folder / "out"), "--jobs", "2"])
    return folder / "out", file, code


GOOD = ("fedavg-original", "fedavg-steered", "feddyn-original", "feddyn-steered")


def test_a_failing_cell_is_marked_and_the_rest_goes_on(grid):
    out, _, code = grid
    assert code == 1
    for name in GOOD:
        assert json.loads((out / "cells" / name / "result.json").read_text())["rounds"] == 3
        assert not (out / "cells" / f"{name}.failed").exists()
        assert "round 3/3" in (out / "cells" / f"{name}.log").read_text()
    failed = json.loads((out / "cells" / "fedavg-wild.failed").read_text())
    assert failed["exit_code"] == 1
    assert "-m c2v_sim.run --config" in failed["command"]
    assert "is not finite; lower the learning rate" in failed["log"][-1]
    assert (out / "sweep.toml").read_text() == GRID
    assert "Tiny" in (out / "table.md").read_text()  # also with a cell that failed
    assert manifest(out / "cells" / GOOD[0])["preset"] == "sweep out, cell fedavg-original"
    assert manifest(out / "cells" / GOOD[0])["lanes"] == 1


def test_the_index_is_made_once(grid):
    out, _, _ = grid
    assert len(list((out / "shared").glob("index-*/index.safetensors"))) == 1


def test_side_by_side_ends_in_the_bits_of_one_after_another(grid, tmp_path):
    out, _, _ = grid
    for name in GOOD:
        flags = ["--config", str(out / "cells" / f"{name}.toml"), "--out", str(tmp_path / name)]
        assert run.main(flags) == 0  # by itself, with all lanes
        assert outcome(tmp_path / name) == outcome(out / "cells" / name)


def test_the_next_start_runs_only_what_is_missing(grid, capsys):
    out, file, _ = grid
    before = {name: (out / "cells" / f"{name}.log").read_text() for name in (*GOOD, "fedavg-wild")}
    results = {name: outcome(out / "cells" / name) for name in GOOD}
    (out / "cells" / "feddyn-original" / "result.json").unlink()
    assert main([str(file), "--out", str(out)]) == 1
    after = {name: (out / "cells" / f"{name}.log").read_text() for name in before}
    assert {n for n in before if before[n] != after[n]} == {"fedavg-wild", "feddyn-original"}
    assert {name: outcome(out / "cells" / name) for name in GOOD} == results
    error = capsys.readouterr().err
    assert "3 of 5 cells are done already" in error
    assert "feddyn-original  best " in error
    assert re.search(
        "fedavg-wild  FAILED: round 1, .* is not finite; lower the learning rate", error
    )


def test_a_sweep_killed_in_its_first_moment_begins_anew(tmp_path):
    file, out = tmp_path / "seeds.toml", tmp_path / "out"
    file.write_text(BASE + SEEDS)
    out.mkdir()
    for name in (LOCK, "sweep.toml.partial"):
        (out / name).touch()
    check_same(out, read_sweep(file))
    (out / "a letter").touch()
    with pytest.raises(ConfigError, match=r"is not empty and holds no sweep\.toml"):
        check_same(out, read_sweep(file))


def test_another_sweep_that_came_first_is_not_overwritten(grid, tmp_path, monkeypatch, capsys):
    """It began and ended between the first look and the lock."""
    out, file, _ = grid
    before = (out / "sweep.toml").read_bytes()
    looks = iter([lambda *_: None, check_same])
    monkeypatch.setattr(sweep_command, "check_same", lambda *a: next(looks)(*a))
    assert main([str(file), "--out", str(out), "--set", "rounds=4"]) == 2
    assert "holds another sweep: rounds of cell" in capsys.readouterr().err
    assert (out / "sweep.toml").read_bytes() == before


def test_another_sweep_in_the_same_directory_is_refused(grid, tmp_path, capsys):
    out, file, _ = grid
    assert main([str(file), "--out", str(out), "--set", "rounds=4"]) == 2
    error = capsys.readouterr().err
    assert f"--out {out} holds another sweep: rounds of cell fedavg-original" in error
    assert "(was 3, now 4)" in error
    other = tmp_path / "other.toml"
    other.write_text(GRID.replace('"feddyn"]', '"fedprox"]').replace('= "feddyn"', '= "fedprox"'))
    assert main([str(other), "--out", str(out)]) == 2
    assert "cell feddyn-original is not in this one" in capsys.readouterr().err
    assert main([str(file), "--out", str(tmp_path)]) == 2
    assert "is not empty and holds no sweep.toml" in capsys.readouterr().err


def test_a_sweep_that_has_grown_goes_on_with_what_is_there(tmp_path, capsys):
    file, out = tmp_path / "seeds.toml", tmp_path / "out"
    file.write_text(BASE.replace("rounds = 3", "rounds = 1") + SEEDS)
    assert main([str(file), "--out", str(out)]) == 0
    before = {n: (out / "cells" / n / "result.json").stat().st_mtime_ns for n in "01"}
    file.write_text(file.read_text().replace("seed = [0, 1]", "seed = [0, 1, 2]"))
    capsys.readouterr()
    assert main([str(file), "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert "2 of 3 cells are done already" in shown.err
    assert f"pictures: python -m c2v_sim.report {out} -o report.html" in shown.err
    assert {n: (out / "cells" / n / "result.json").stat().st_mtime_ns for n in "01"} == before
    (place,) = json.loads((out / "table.json").read_text())["places"]
    assert place["values"].keys() == {"0", "1", "2"}


def test_a_dry_run_lists_estimates_and_writes_nothing(grid, tmp_path, monkeypatch, capsys):
    out, file, _ = grid
    monkeypatch.chdir(tmp_path)
    dsa_ign = ["--set", "index=dsa-ign", "--set", "index_strategy=federated"]
    assert main([str(file), "--dry-run", *dsa_ign, "--jobs", "2"]) == 0
    shown = capsys.readouterr().out
    assert shown.count(" new ") == 5
    assert "lr = 1e+30" in shown
    assert "index of fedavg-steered and 1 more" in shown
    assert "5 of 5 cells to run" in shown
    assert "An estimate" in shown
    assert not list(tmp_path.iterdir())
    listing = sorted(out.rglob("*"))
    assert main([str(file), "--dry-run", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert shown.count(" done ") == 4
    assert shown.count(" failed ") == 1
    assert "1 of 5 cells to run" in shown
    assert sorted(out.rglob("*")) == listing


def test_the_time_of_a_sweep_is_when_its_last_cell_ends():
    times = Estimate(cells={"a": 10.0, "b": 20.0, "c": 10.0}, indices={"index": 5.0})
    assert times.total(2, [1, 1, 1]) == 5.0 + 20.0  # c after a, beside b
    assert times.total(1, [2, 2, 2]) == 5.0 + 20.0  # one after another, on both cores
    assert times.total(2, [1, 1, 2]) == 5.0 + 20.0
    assert Estimate({"a": 10.0, "b": 10.0, "c": 10.0}, {}).total(2, [1, 1, 2]) == 15.0
    assert Estimate({}, {}).total(2, []) == 0.0


@pytest.mark.parametrize(("strategy", "pairs"), [("global", 100 * 6 * 5), ("federated", 100 * 5)])
def test_the_time_of_an_index_is_that_of_the_samples_it_sees(strategy, pairs):
    config = RunConfig(
        **{"train_size": 300, "test_size": 60, "clients": 6, "improve": ("sampling",)},
        **{"index_strategy": strategy, "index_epochs": 100, "index_max_samples": 5},
    )
    federation, config = build_federation(config)
    kind = values_affecting(index_settings(config), Affects.PACE)
    one_second = {kind: 1.0}  # a pair; the rest is embedding 30 images
    assert pairs + 10 <= index_seconds(federation, config, one_second) < pairs + 40


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "rounds"], "--set rounds: must be KEY=VALUE"),
        (["--set", "round=3"], "unknown setting 'round'; did you mean rounds?"),
        (["--jobs", "0"], "--jobs must be at least 1, got 0"),
        (["--out", __file__], "test_sweep.py is a file; name a directory"),
        (["--out", f"{__file__}/x"], "no directory can be made there (Not a directory)"),
        (["--only", "moon-*"], "--only moon-*: no cell has such a name; cells: 0"),
        (
            [*PACS, "--set", "require_real_data=true", "--set", "data_dir=nowhere"],
            "pacs is not in nowhere",
        ),
    ],
)
def test_bad_input_exits_2_before_anything_is_written(
    arguments, message, tmp_path, tmp_path_factory, monkeypatch, capsys
):
    file = tmp_path_factory.mktemp("file") / "small.toml"
    file.write_text(BASE + SEEDS)
    monkeypatch.chdir(tmp_path)
    assert main([str(file), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_settings_are_toml_or_bare_words():
    given = [
        "rounds=3",
        "lr = 0.5",
        "tau=.1",
        "alpha=much",
        "model=cnn",
        "improve=sampling local",
        "augment='none'",
    ]
    assert parse_settings(given) == {
        "rounds": 3,
        "lr": 0.5,
        "tau": 0.1,
        "alpha": "much",
        "model": "cnn",
        "improve": ["sampling", "local"],
        "augment": "none",
    }


def test_an_index_that_fails_fails_its_cells_and_no_others(tmp_path, capsys):
    file, out = tmp_path / "x.toml", tmp_path / "out"
    steered = 'improve = ["sampling"], index_encoder = "clip", index_clip_weights = "nowhere"'
    cases = f"[axes.case]\nplain = {{}}\nsteered = {{ {steered} }}\n"
    file.write_text(BASE.replace("rounds = 3", "rounds = 1") + cases)
    assert main([str(file), "--out", str(out)]) == 1
    failed = json.loads((out / "cells" / "steered.failed").read_text())
    assert "c2v_sim.index --resume" in failed["command"]
    assert "clip" in failed["log"][-1]
    assert not (out / "cells" / "steered").exists()
    assert (out / "cells" / "plain" / "result.json").exists()


# ---- interrupted and killed -----------------------------------------------------------------


def started(file, out):
    command = [sys.executable, "-P", "-m", "c2v_sim.sweep", str(file), "--out", str(out)]
    return subprocess.Popen([*command, "--jobs", "2"], stderr=subprocess.PIPE, text=True)


def wait_for_rounds(out, rounds):
    """Until each of the two cells has recorded so many rounds."""
    files, end = [out / "cells" / name / "rounds.jsonl" for name in "01"], time.monotonic() + 120
    while not all(f.exists() and f.read_bytes().count(b"\n") >= rounds for f in files):
        assert time.monotonic() < end
        time.sleep(0.005)


def test_an_interrupted_and_then_killed_sweep_ends_in_the_same_bits(tmp_path, monkeypatch, capsys):
    file, out = tmp_path / "long.toml", tmp_path / "out"
    file.write_text(BASE.replace("rounds = 3", "rounds = 100\ncheckpoint_every = 30") + SEEDS)
    sweep = started(file, out)
    wait_for_rounds(out, 3)
    assert main([str(file), "--out", str(out)]) == 2
    assert "another process works in this directory" in capsys.readouterr().err
    assert run.main(["--resume", str(out / "cells" / "0")]) == 2
    assert "another process works in this directory" in capsys.readouterr().err
    sweep.send_signal(signal.SIGINT)
    error = sweep.communicate(timeout=120)[1]
    assert sweep.returncode == 130, error
    assert f"go on with: python -m c2v_sim.sweep {file} --out {out} --jobs 2" in error
    assert "Traceback" not in error + (out / "cells" / "0.log").read_text()
    done = {n: (out / "cells" / n / "rounds.jsonl").read_bytes().count(b"\n") for n in "01"}
    for name, rounds in done.items():  # in order: each has a checkpoint of its last round
        assert f"{rounds:06d}" in {p.name for p in (out / "cells" / name / "checkpoints").iterdir()}
        assert not (out / "cells" / f"{name}.failed").exists()

    sweep = started(file, out)
    wait_for_rounds(out, max(done.values()) + 3)
    cells = psutil.Process(sweep.pid).children()
    sweep.kill()
    sweep.wait()
    sweep.stderr.close()
    assert len(cells) == 2
    assert not psutil.wait_procs(cells, timeout=30)[1]
    assert not (out / "cells" / "0" / "result.json").exists()

    assert main([str(file), "--out", str(out)]) == 0
    assert not (out / "shared").exists()
    for name in "01":
        flags = ["--config", str(out / "cells" / f"{name}.toml"), "--out", str(tmp_path / name)]
        assert run.main(flags) == 0
        assert outcome(tmp_path / name) == outcome(out / "cells" / name)

    monkeypatch.setattr(runner, "shutil", SimpleNamespace(rmtree=lambda *_, **__: None))
    assert main([str(file), "--out", str(out)]) == 0
    left = f"warning: {out / 'shared'} could not be deleted; it is not needed any more"
    assert left in capsys.readouterr().err


# ---- progress -------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_and_the_time_left(tmp_path, capsys):
    file = tmp_path / "p.toml"
    file.write_text('[base]\nrounds = 10\n[axes]\nmodel = ["linear", "mlp"]\nseed = [0, 1]')
    cells = list(read_sweep(file).cells)
    plain = SweepProgress(tmp_path, cells, 0, 2, io.StringIO())
    assert plain.left([]) == 0.0  # nothing is known yet
    plain.cell_done(cells[0], 20.0, "50.00 %")
    # 10 rounds each of linear at 2 s, and of two unknown ones at the same
    assert plain.left([]) == pytest.approx(3 * 10 * 2.0 / 2)
    plain.cell_done(cells[2], 80.0, "60.00 %")
    assert plain.left([]) == pytest.approx(10 * 8.0)  # more than half of 20 + 80
    plain.gave_up(cells[3])
    assert plain.left([]) == pytest.approx(20.0)
    lines = plain.stream.getvalue().splitlines()
    assert lines == [
        "linear-0  best 50.00 %  20 s  1 of 4  ETA 30 s",
        "mlp-0  best 60.00 %  80 s  2 of 4  ETA 80 s",
    ]
    bar = SweepProgress(tmp_path, cells, 0, 2, Terminal())
    folder = tmp_path / "cells" / "linear-0"
    folder.mkdir(parents=True)
    (folder / "rounds.jsonl").write_text("{}\n" * 4)
    running = Job("linear-0", [], tmp_path / "log", about=[cells[0]])
    bar.index("index 1/2 of linear-0: epoch 3/5")
    bar.update([running])
    assert "0/4 cells  linear-0 4/10" in bar.stream.getvalue()  # no pace of its rounds yet
    since, rounds = bar.first_seen["linear-0"]
    (folder / "rounds.jsonl").write_text("{}\n" * 6)
    bar.first_seen["linear-0"], bar.last_update = (since - 8.0, rounds), 0.0
    bar.update([running])
    assert bar.left([running]) == pytest.approx((4 + 30) * 4.0 / 2, rel=0.05)
    bar.gave_up(cells[3])
    bar.close()
    shown = bar.stream.getvalue()
    assert "index 1/2 of linear-0: epoch 3/5" in shown
    assert "ETA 6" in shown
    assert shown.rstrip().endswith("0/4 cells, 1 failed")
    plain.last_line = plain.last_update = 0.0  # long ago
    plain.update([running])
    assert "2/4 cells, 1 failed  ETA 20 s  linear-0 6/10" in plain.stream.getvalue()


def test_durations_are_readable():
    assert [duration(s) for s in (5, 119, 600, 9000)] == ["5 s", "119 s", "10 min", "2.5 h"]
