"""The event files that --tensorboard writes, read back as TensorBoard reads them."""

import os
import signal
import subprocess
import sys

import pytest
from tracked_runs import TINY, records_of, stopped

from c2v_sim.run import __main__ as run

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


@pytest.fixture(autouse=True)
def data_dir(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("C2V_DATA", str(tmp_path_factory.getbasetemp() / "data"))


def events_of(folder):
    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    return events.Reload()


def check_same(out):
    """Every round once, in order, with the values of rounds.jsonl."""
    events, records = events_of(out), records_of(out)
    wanted = {"train/loss": [r["train_loss"] for r in records]}
    for name in ("accuracy", "accuracy_weighted", "accuracy_worst10", "accuracy_global"):
        wanted[f"accuracy/{name}"] = [r[name] for r in records]
    for place, name in enumerate(("flat", "outline", "neon", "textured", "foggy", "mosaic")):
        shown = [r["accuracy_domains"] and r["accuracy_domains"][place] for r in records]
        wanted[f"accuracy_by_domain/{name}"] = shown
    for stage in ("sample", "train", "aggregate", "evaluate"):
        wanted[f"seconds/{stage}"] = [r["seconds"][stage] for r in records]
    assert set(events.Tags()["scalars"]) == wanted.keys()
    for tag, values in wanted.items():
        points = [(i, v) for i, v in enumerate(values, 1) if v is not None]
        scalars = events.Scalars(tag)
        assert [s.step for s in scalars] == [i for i, _ in points], tag
        assert [s.value for s in scalars] == pytest.approx([v for _, v in points], rel=1e-6), tag
        times = [s.wall_time for s in scalars]
        assert times == sorted(times)
    return events


def test_a_run_shows_its_rounds_and_its_settings(tmp_path):
    out = tmp_path / "run"
    assert run.main([*TINY, "--eval-every", "2", "--tensorboard", "--out", str(out)]) == 0
    events = check_same(out)
    (text,) = events.Tensors("settings/text_summary")
    shown = text.tensor_proto.string_val[0].decode()
    assert shown.startswith("trained on shapes\n")
    assert "rounds = 6" in shown
    (text,) = events.Tensors("manifest/text_summary")
    assert '"name": "shapes"' in text.tensor_proto.string_val[0].decode()
    (picture,) = events.Images("accuracy")
    assert (picture.step, picture.encoded_image_string[:4]) == (6, b"\x89PNG")
    assert "tensorboard" not in (out / "config.toml").read_text()


def test_without_the_flag_there_is_no_log(tmp_path):
    out = tmp_path / "run"
    assert run.main([*TINY, "--rounds", "1", "--out", str(out)]) == 0
    assert not (out / "tensorboard").exists()


def test_a_resume_purges_the_rounds_that_are_trained_again(tmp_path, monkeypatch):
    out = tmp_path / "run"
    stopped(out, monkeypatch, 3, *TINY, "--tensorboard", "--out", str(out))
    assert [s.step for s in events_of(out).Scalars("train/loss")] == [1, 2, 3]
    assert run.main(["--resume", str(out), "--tensorboard"]) == 0
    check_same(out)
    assert len(list((out / "tensorboard").iterdir())) == 1


def test_a_log_is_whole_whichever_resume_had_the_flag(tmp_path, monkeypatch):
    out = tmp_path / "run"
    stopped(out, monkeypatch, 2, *TINY, "--tensorboard", "--out", str(out))
    stopped(out, monkeypatch, 4, "--resume", str(out))  # without
    assert run.main(["--resume", str(out), "--tensorboard"]) == 0
    check_same(out)
    late = tmp_path / "late"
    stopped(late, monkeypatch, 4, *TINY, "--out", str(late))
    assert run.main(["--resume", str(late), "--tensorboard"]) == 0
    check_same(late)


def test_a_killed_run_keeps_its_log_and_goes_on(tmp_path):
    out = tmp_path / "run"
    flags = [*TINY, "--rounds", "200", "--checkpoint-every", "7", "--tensorboard"]
    command = [sys.executable, "-P", "-m", "c2v_sim.run", *flags, "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ})
    for line in process.stderr:
        if line.startswith("round 20/"):
            process.send_signal(signal.SIGKILL)
            break
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    shown = [s.step for s in events_of(out).Scalars("train/loss")]
    assert shown == list(range(1, len(shown) + 1))
    assert len(shown) >= 19  # a round is on disk before the next one begins
    assert run.main(["--resume", str(out), "--tensorboard"]) == 0
    check_same(out)


def test_the_missing_package_is_refused_before_anything_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert run.main([*TINY, "--tensorboard", "--out", str(tmp_path / "run")]) == 2
    assert "pip install 'c2v_sim[tensorboard]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_full_disk_ends_the_log_and_not_the_run(tmp_path, monkeypatch, capsys):
    from tensorboard.summary.writer.record_writer import RecordWriter

    write, count = RecordWriter.write, []

    def full(self, data):
        count.append(1)
        if len(count) > 20:  # within the second round
            raise OSError(28, "No space left on device")
        write(self, data)

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(RecordWriter, "write", full)
        assert run.main([*TINY, "--tensorboard", "--out", str(out)]) == 0
    error = capsys.readouterr().err
    assert error.count("tensorboard ends here: [Errno 28] No space left on device") == 1
    assert len(records_of(out)) == 6
    assert run.main(["--resume", str(out), "--tensorboard"]) == 0
    check_same(out)
