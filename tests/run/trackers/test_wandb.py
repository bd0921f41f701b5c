"""--wandb with the real package, offline: its own files are read back."""

import json
import struct
import sys
import time

import pytest
from federations import image_federation
from tracked_runs import TINY, records_of, stopped

from c2v_sim import RunConfig, Simulator
from c2v_sim.run import __main__ as run

pytest.importorskip("wandb", reason="wandb is not there (pip install 'c2v_sim[wandb]')")
import wandb
from wandb.proto.wandb_internal_pb2 import Record

from c2v_sim.run.trackers import Wandb

BLOCK, HEADER = 32768, 7  # of wandb's file, which is a LevelDB log behind 7 bytes of its own


@pytest.fixture(autouse=True)
def offline(tmp_path_factory, tmp_path, monkeypatch):
    monkeypatch.setenv("C2V_DATA", str(tmp_path_factory.getbasetemp() / "data"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("CONFIG_DIR", "CACHE_DIR", "DATA_DIR"):
        monkeypatch.setenv(f"WANDB_{name}", str(tmp_path / "of-wandb"))


def log_records(file):
    """What wandb wrote, as its own messages."""
    data, at, parts = file.read_bytes(), HEADER, b""
    assert data[:4] == b":W&B"
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:  # no header fits: the rest of the block is empty
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + HEADER])
        if kind == 0:
            at += BLOCK - at % BLOCK
            continue
        parts += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(parts)
            parts = b""


def wandb_runs(folder):
    """The runs in wandb's folder, oldest first, as lists of records.

    `finish` returns before wandb's own process has written them; the last is that of the exit.
    """
    files = sorted((folder / "wandb").glob("offline-run-*/run-*.wandb"))
    for _ in range(600):
        runs = [list(log_records(file)) for file in files]
        if all(of_kind(records, "exit") for records in runs):
            break
        time.sleep(0.1)
    return runs


def values(items):
    return {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items}


def history(records):
    return [values(r.history.item) for r in records if r.WhichOneof("record_type") == "history"]


def check_rounds(records, wanted):
    shown = history(records)
    assert [row["_step"] for row in shown] == [r["round"] for r in wanted]
    for row, record in zip(shown, wanted, strict=True):
        assert row["train/loss"] == record["train_loss"]
        assert row["seconds/train"] == record["seconds"]["train"]
        assert row.get("accuracy/accuracy") == record["accuracy"]
        if record["accuracy_domains"]:
            assert row["accuracy_by_domain/neon"] == record["accuracy_domains"][2]


def of_kind(records, kind):
    return [getattr(r, kind) for r in records if r.WhichOneof("record_type") == kind]


def test_rounds_settings_manifest_and_curve_arrive(tmp_path):
    out = tmp_path / "run"
    assert run.main([*TINY, "--eval-every", "2", "--wandb", "--out", str(out)]) == 0
    (records,) = wandb_runs(out)
    check_rounds(records, records_of(out))
    (begun,) = of_kind(records, "run")
    assert (begun.project, begun.display_name) == ("c2v_sim", f"{tmp_path.name}/run")
    config = values(begun.config.update)
    assert (config["rounds"], config["model"]) == (6, "linear")
    assert config["manifest"] == json.loads((out / "manifest.json").read_text())
    assert {f.path for a in of_kind(records, "artifact") for f in a.manifest.contents} == {
        "config.toml",
        "manifest.json",
    }
    summary = {k: v for s in of_kind(records, "summary") for k, v in values(s.update).items()}
    result = json.loads((out / "result.json").read_text())
    assert summary["best_accuracy"] == result["best_accuracy"]
    assert summary["accuracy_curve"]["_type"] == "image-file"
    (picture,) = out.glob("wandb/offline-run-*/files/media/images/*.png")
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert [e.exit_code for e in of_kind(records, "exit")] == [0]


def test_a_resume_goes_on_in_the_same_run_with_all_rounds(tmp_path, monkeypatch):
    out = tmp_path / "run"
    stopped(out, monkeypatch, 3, *TINY, "--wandb", "--out", str(out))
    assert run.main(["--resume", str(out), "--wandb"]) == 0
    first, second = wandb_runs(out)
    assert of_kind(first, "run")[0].run_id == of_kind(second, "run")[0].run_id
    assert [row["_step"] for row in history(first)] == [1, 2, 3]
    check_rounds(second, records_of(out))
    assert [e.exit_code for r in (first, second) for e in of_kind(r, "exit")] == [1, 0]


def test_from_a_program_of_ones_own(tmp_path):
    config = RunConfig(model="linear", rounds=2, participation=0.5, local_epochs=1, batch_size=8)
    simulator = Simulator(image_federation(), config)
    result = simulator.run(observers=[Wandb(project="mine", dir=tmp_path)])
    simulator.close()
    (records,) = wandb_runs(tmp_path)
    (begun,) = of_kind(records, "run")
    assert (begun.project, begun.display_name) == ("mine", "user, linear, fedavg, seed 0")
    assert values(begun.config.update)["manifest"]["data"]["name"] == "user"
    assert [row["train/loss"] for row in history(records)] == [
        record.train_loss for record in result.records
    ]


def test_a_log_that_fails_does_not_end_the_run(tmp_path, monkeypatch, capsys):
    log, out = wandb.Run.log, tmp_path / "run"

    def gone(self, values, step, **rest):
        if step == 3:
            raise wandb.errors.CommError("the server is gone")
        log(self, values, step=step, **rest)

    with monkeypatch.context() as patch:
        patch.setattr(wandb.Run, "log", gone)
        assert run.main([*TINY, "--wandb", "--out", str(out)]) == 0
    line = "warning: the log in Weights & Biases ends here: the server is gone. The run goes on"
    assert capsys.readouterr().err.count(line) == 1
    assert len(records_of(out)) == 6


def test_the_missing_package_is_refused_before_anything_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert run.main([*TINY, "--wandb", "--out", str(tmp_path / "run")]) == 2
    assert "pip install 'c2v_sim[wandb]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
