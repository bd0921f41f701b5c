"""A run directory read back: what is there, what is not there yet, and what is damaged."""

import json

import numpy as np
import pytest
from plain_run import PLAIN

from c2v_sim.run import __main__ as run
from c2v_sim.run.files import count_rounds
from c2v_sim.run.reader import read_run, run_state

TINY = "--model linear --train-size 240 --test-size 120 --clients 6 --participation 0.5 --rounds 2"


@pytest.fixture
def finished(tmp_path, monkeypatch):
    monkeypatch.setenv("C2V_DATA", str(tmp_path / "data"))
    out = tmp_path / "done"
    assert run.main([*TINY.split(), "--local-epochs", "1", *PLAIN, "--out", str(out)]) == 0
    return out


def test_everything_that_a_run_left_is_read(finished):
    saved = read_run(finished)
    assert (saved.name, saved.state, saved.failure) == ("done", "done", "")
    assert saved.config["clients"] == 6
    assert saved.manifest["data"]["name"] == "shapes"
    assert [r.round for r in saved.records] == [1, 2]
    assert saved.result["best_accuracy"] == max(r.accuracy for r in saved.evaluated)
    assert saved.cost.total == sum(sum(r.seconds.values()) for r in saved.records)
    assert saved.result["seconds"] == saved.result["seconds_rounds"] == round(saved.cost.total, 2)
    assert (saved.result["seconds_index"], saved.result["index_origin"]) == (0.0, None)
    assert saved.clients.sizes.sum() == 240
    assert np.array_equal(saved.clients.label_counts.sum(1), saved.clients.sizes)
    assert saved.index is None


def test_the_state_is_what_the_files_say(finished):
    assert run_state(finished) == "done"
    (finished / "result.json").unlink()
    assert run_state(finished) == read_run(finished).state == "unfinished"
    assert read_run(finished).result is None
    finished.with_name("done.failed").write_text(json.dumps({"exit_code": -9, "log": []}))
    assert run_state(finished) == "failed"
    assert read_run(finished).failure == "killed by SIGKILL, perhaps for want of memory"
    assert run_state(finished.with_name("nothing")) == "new"


def test_a_line_that_was_cut_off_is_no_round_but_one_in_the_middle_is_damage(finished):
    file = finished / "rounds.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + lines[1][:40])
    assert [r.round for r in read_run(finished).records] == [1]
    assert count_rounds(finished) == 1
    file.write_bytes(lines[0][:40] + b"\n" + lines[1])
    with pytest.raises(ValueError, match=r"rounds\.jsonl, line 1: not a round's record"):
        _ = read_run(finished).records


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("manifest.json", "{", r"manifest\.json is cut off or damaged"),
        ("manifest.json", '{"data": {}}', "data.name is missing"),
        ("config.toml", "rounds =", r"config\.toml cannot be read"),
        ("result.json", "", r"result\.json is cut off or damaged"),
        ("clients.npz", "no arrays", r"clients\.npz: cannot be read"),
    ],
)
def test_a_damaged_file_is_named(finished, name, text, message):
    (finished / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        _ = read_run(finished).clients
