"""The command, as a user types it: in a process of its own where signals and exit codes matter."""

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest
import torch
from plain_run import PLAIN
from safetensors.torch import load_file

from c2v_sim.config import make_config, read_toml
from c2v_sim.data.resident import ResidentData
from c2v_sim.models import build_model
from c2v_sim.run import __main__ as run
from c2v_sim.run.build import new_path
from c2v_sim.run.presets import preset
from c2v_sim.run.settings import settings_of

TINY = ["--train-size", "400", "--test-size", "100", "--clients", "8", "--participation", "0.25"]
TINY += ["--rounds", "3", "--local-epochs", "1", "--batch-size", "16", *PLAIN]


@pytest.fixture(autouse=True)
def data_dir(tmp_path_factory, monkeypatch):
    """Rendered images are cached outside the user's folder, once for all tests here."""
    folder = tmp_path_factory.getbasetemp() / "data"
    monkeypatch.setenv("C2V_DATA", str(folder))
    return folder


def c2v(*arguments, **options):
    command = [sys.executable, "-P", "-m", "c2v_sim.run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


def same_model(a, b):
    return (a / "model.safetensors").read_bytes() == (b / "model.safetensors").read_bytes()


def rounds_of(folder):
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A complete run of the command, looked at by several tests."""
    os.environ["C2V_DATA"] = str(tmp_path_factory.getbasetemp() / "data")
    out = tmp_path_factory.mktemp("run") / "first"
    done = c2v(*TINY, "--out", str(out))
    assert done.returncode == 0, done.stderr
    return out, done


def test_the_header_says_how_the_clients_are_trained(finished):
    _, done = finished
    assert "  training: one client at a time on each lane: a cohort has fewer than 4" in done.stderr


def test_the_run_directory_is_complete(finished):
    out, _ = finished
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["data"]["name"] == "shapes"
    assert len(manifest["data"]["sha256"]) == len(manifest["partition"]["sha256"]) == 64
    assert "dirichlet" in manifest["partition"]["convention"]
    assert manifest["preset"].startswith("quick, changed: train_size, test_size, clients")
    assert {"torch", "numpy", "python", "c2v_sim"} <= manifest["versions"].keys()
    assert {"commit", "machine", "backend", "evaluation", "command"} <= manifest.keys()
    assert manifest["command"].startswith("python -m c2v_sim.run --train-size 400")
    config = make_config(read_toml(out / "config.toml"))
    assert (config.clients, config.rounds, config.local_epochs) == (8, 3, 1)
    records = rounds_of(out)
    assert [r["round"] for r in records] == [1, 2, 3]
    assert all(0 <= r["accuracy"] <= 1 and len(r["cohort"]) == 2 for r in records)
    result = json.loads((out / "result.json").read_text())
    assert result["best_accuracy"] == max(r["accuracy"] for r in records)
    assert len(result["final_client_accuracy"]) == 8
    assert (out / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert not list(out.glob("*.partial"))


def test_the_final_model_loads_into_the_module(finished):
    model = build_model("cnn", classes=10, input_shape=(32, 32, 3), seed=9)
    model.load_state_dict(load_file(finished[0] / "model.safetensors"))


def test_plain_lines_off_a_terminal_and_the_table_on_standard_output(finished):
    out, done = finished
    lines = [line for line in done.stderr.splitlines() if line.startswith("round ")]
    assert len(lines) == 3
    assert "ETA" in lines[0]
    assert "mean over clients" in done.stdout
    assert str(out) in done.stdout
    assert "quick" in done.stdout


def test_the_saved_configuration_repeats_the_run(finished, tmp_path):
    out, _ = finished
    again = tmp_path / "again"
    assert run.main(["--config", str(out / "config.toml"), "--out", str(again)]) == 0
    assert rounds_of(again) == rounds_of(out)
    for name, tensor in load_file(out / "model.safetensors").items():
        assert torch.equal(load_file(again / "model.safetensors")[name], tensor), name


def test_an_existing_directory_is_never_overwritten(finished, capsys):
    out, _ = finished
    before = (out / "rounds.jsonl").read_bytes()
    assert run.main([*TINY, "--out", str(out)]) == 2
    assert "exists and is never overwritten" in capsys.readouterr().err
    assert (out / "rounds.jsonl").read_bytes() == before


def test_default_directories_do_not_collide(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = new_path("runs", "cifar10-standin(shapes)", "fedavg", 0)
    assert str(first).startswith("runs/")
    assert first.name.endswith("cifar10-standin-shapes-fedavg-0")
    first.mkdir(parents=True)
    assert new_path("runs", "cifar10-standin(shapes)", "fedavg", 0) != first


def test_print_config_is_a_config(tmp_path, capsys):
    assert run.main(["--preset", "paper", "--rounds", "7", "--print-config"]) == 0
    file = tmp_path / "settings.toml"
    file.write_text(capsys.readouterr().out)
    config = make_config(read_toml(file))
    assert (config.model, config.rounds) == ("resnet18", 7)


def test_a_config_changes_the_preset_that_the_help_shows(tmp_path, capsys):
    """Whether a setting is in a file or typed, the others are those of --help."""
    file = tmp_path / "mine.toml"
    file.write_text('rounds = 7\nimprove = "none"\n')
    assert run.main(["--config", str(file), "--print-config"]) == 0
    by_file = capsys.readouterr().out
    assert run.main(["--rounds", "7", "--improve", "none", "--print-config"]) == 0
    assert capsys.readouterr().out == by_file
    assert make_config(tomllib.loads(by_file)).lr == preset("quick").lr
    file.write_text("rounds = 7\n")
    assert run.main(["--preset", "paper", "--config", str(file), "--print-config"]) == 0
    paper = make_config(tomllib.loads(capsys.readouterr().out))
    assert paper == dataclasses.replace(preset("paper"), rounds=7)


def test_the_label_says_what_the_settings_came_from(finished, tmp_path):
    """A saved config.toml lists every setting: nothing of a preset is left."""
    some = tmp_path / "some.toml"
    some.write_text("rounds = 7\n")
    labels = {
        "quick": [],
        "paper": ["--preset", "paper"],
        "quick + some.toml": ["--config", str(some)],
        "paper + some.toml": ["--config", str(some), "--preset", "paper"],
        "quick + some.toml, changed: lr": ["--config", str(some), "--lr", "0.2"],
        "config.toml": ["--config", str(finished[0] / "config.toml")],
    }
    for label, flags in labels.items():
        assert settings_of(run.parser().parse_args(flags))[1] == label


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch-size", "0"], "batch_size must be at least 1, got 0"),
        (["--clients", "500", "--train-size", "400", "--test-size", "9"], "clients"),
        (["--alpha", "0.1", "--partition", "iid"], "alpha = 0.1 has no effect"),
        (["--config", "absent.toml"], "cannot read the configuration absent.toml"),
        (["--resume", "absent"], "no run directory"),
        (["--index", "feature-average", *PLAIN], "index = feature-average has no effect"),
        (["--partition", "by-domain", *TINY], "domains"),
        (["--device", "cuda", *TINY], "no CUDA device"),
    ],
)
def test_bad_input_exits_2_before_anything_is_written(
    arguments, message, tmp_path, monkeypatch, capsys
):
    if "cuda" in arguments and torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    monkeypatch.chdir(tmp_path)
    assert run.main(arguments) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_standard_output_does_not_hide_that_all_is_saved(finished, tmp_path, unbuffered):
    out = shutil.copytree(finished[0], tmp_path / "full")
    command = [sys.executable, "-P", "-m", "c2v_sim.run", "--resume", str(out)]
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, env=environment
        )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "the result cannot be printed to standard output (No space left on device)" in last
    assert f"training is done and everything is saved in {out}" in last
    assert same_model(out, finished[0])


def test_how_many_clients_were_tested_is_said(finished, tmp_path, capsys):
    out, done = finished
    assert "tested:" not in done.stdout  # all of them
    assert json.loads((out / "result.json").read_text())["tested_clients"] == 8
    few = [*TINY, "--test-size", "1", "--rounds", "1", "--model", "linear"]
    assert run.main([*few, "--out", str(tmp_path / "few")]) == 0
    shown = capsys.readouterr()
    for text in (shown.out, shown.err):
        assert "warning: tested: 1 of 8 clients, 1 samples; the others have none" in text
    result = json.loads((tmp_path / "few" / "result.json").read_text())
    assert (result["clients"], result["tested_clients"]) == (8, 1)


def test_unknown_flags_and_values_exit_2_with_the_allowed_ones(capsys):
    with pytest.raises(SystemExit) as stop:
        run.main(["--model", "vgg"])
    assert stop.value.code == 2
    assert "cnn" in capsys.readouterr().err


def test_clients_per_domain_sets_the_number_of_clients(tmp_path):
    out = tmp_path / "domains"
    flags = [
        "--partition",
        "by-domain",
        "--clients-per-domain",
        "2",
        "--rounds",
        "1",
        "--local-epochs",
        "1",
    ]
    flags += ["--train-size", "240", "--test-size", "120", "--model", "linear", *PLAIN]
    assert run.main([*flags, "--out", str(out)]) == 0
    assert len(rounds_of(out)[0]["accuracy_domains"]) == 6
    assert json.loads((out / "manifest.json").read_text())["partition"]["clients"] == 12


def test_nan_stops_with_round_and_client_and_keeps_what_was_saved(tmp_path, capsys):
    out = tmp_path / "nan"
    assert run.main([*TINY, "--lr", "1e30", "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert "round 1, client" in error
    assert f"What was done before is in {out}" in error
    assert "--resume" not in error  # it would end so again
    assert (out / "manifest.json").exists()
    assert list((out / "checkpoints").iterdir()) == []


def test_a_failing_lane_is_named_with_its_traceback_and_the_checkpoint_stays_good(
    finished, tmp_path, monkeypatch, capsys
):
    reference, _ = finished
    out = tmp_path / "failing"
    batch, calls = ResidentData.batch, []

    def failing(self, ids, generator=None):
        calls.extend([1] if len(self) == 400 else [])  # not those of the test set
        if len(calls) == 25:
            raise ZeroDivisionError("a wild lane")
        return batch(self, ids, generator)

    with monkeypatch.context() as patch:
        patch.setattr(ResidentData, "batch", failing)
        assert run.main([*TINY, "--checkpoint-every", "1", "--out", str(out)]) == 1
    error = capsys.readouterr().err
    last = error.splitlines()[-1]
    assert re.search(r"round [23], client \d, algorithm fedavg: .*ZeroDivisionError: a wild", last)
    assert 'raise ZeroDivisionError("a wild lane")' in error  # the traceback's line
    assert "A resume goes on after round" in last
    assert list((out / "checkpoints").iterdir()) != []
    assert run.main(["--resume", str(out)]) == 0
    assert rounds_of(out) == rounds_of(reference)
    assert same_model(out, reference)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_keeps_finished_rounds_and_resume_gives_the_same_bits(
    finished, tmp_path, number, code
):
    reference, _ = finished
    out = tmp_path / "stopped"
    command = [sys.executable, "-P", "-m", "c2v_sim.run", *TINY, "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:  # after the first round
        if line.startswith("round 1"):
            process.send_signal(number)
            break
    error = process.communicate(timeout=120)[1]
    if process.returncode == 0:
        pytest.skip("the run was over before the signal came")
    assert process.returncode == code
    assert error.count("stopping after the steps in flight; Ctrl-C again quits at once") == 1
    assert f"go on with: python -m c2v_sim.run --resume {out}" in error
    assert "Traceback" not in error
    saved = [p.name for p in (out / "checkpoints").iterdir()]  # though only every fifth is due
    assert saved == [f"{len(rounds_of(out)):06d}"]
    assert run.main(["--resume", str(out), "--lanes", "1"]) == 0
    assert rounds_of(out) == rounds_of(reference)
    assert same_model(out, reference)


STUCK = """
import sys, time
from c2v_sim.run import __main__ as run
from c2v_sim.data.resident import ResidentData
batch, calls = ResidentData.batch, []
def slow(self, ids, generator=None):
    calls.append(1)
    if len(calls) == 20:
        print("stuck", file=sys.stderr, flush=True)
        time.sleep(600)
    return batch(self, ids, generator)
ResidentData.batch = slow
sys.exit(run.main(sys.argv[1:]))
"""


def test_a_second_ctrl_c_quits_at_once(finished, tmp_path):
    out = tmp_path / "impatient"
    command = [sys.executable, "-P", "-c", STUCK, *TINY, "--lanes", "1", "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if line.startswith(("stuck", "stopping after")):
            process.send_signal(signal.SIGINT)
        if line.startswith("stopping after"):
            break
    rest = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "go on with" not in rest  # it did not wait for the step, nor write
    assert "Traceback" not in rest
    assert run.main(["--resume", str(out)]) == 0
    assert same_model(out, finished[0])


def test_sigterm_while_the_data_is_read_is_143_and_writes_nothing(tmp_path):
    script = "import os, signal, sys; from c2v_sim.run import __main__ as run\n"
    script += "run.prepare = lambda _: os.kill(os.getpid(), signal.SIGTERM)\n"
    script += "sys.exit(run.main(sys.argv[1:]))"
    command = [sys.executable, "-P", "-c", script, *TINY, "--out", str(tmp_path / "early")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 143, done.stderr
    assert "terminated before training; nothing was written" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_finished_run_resumed_says_the_same_again(finished, tmp_path):
    """As after a kill between the last checkpoint and the results."""
    reference, _ = finished
    out = tmp_path / "again"
    shutil.copytree(reference, out)
    for name in ("model.safetensors", "result.json", "accuracy.png"):
        (out / name).unlink()
    for half in ("model.safetensors.partial", ".tmpAbC123"):  # the second is safetensors' own
        (out / half).write_bytes(b"half")
    assert run.main(["--resume", str(out)]) == 0
    assert same_model(out, reference)
    assert (out / "result.json").read_text() == (reference / "result.json").read_text()
    assert {p.name for p in out.iterdir()} == {p.name for p in reference.iterdir()}


@pytest.mark.parametrize("name", ["accuracy.png", "model.safetensors", "rounds.csv"])
def test_the_summary_is_there_only_when_all_else_is(finished, tmp_path, capsys, name):
    """A sweep takes a run with a summary as done and never comes back to it."""
    reference, _ = finished
    out = tmp_path / "again"
    shutil.copytree(reference, out)
    (out / "result.json").unlink()
    (out / name).unlink()
    (out / name / "in the way").mkdir(parents=True)
    assert run.main(["--resume", str(out)]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert name in last
    assert "result.json (it is written last, when all else is there)" in last
    assert not (out / "result.json").exists()
    shutil.rmtree(out / name)
    assert run.main(["--resume", str(out)]) == 0
    for file in (name, "result.json"):
        assert (out / file).read_bytes() == (reference / file).read_bytes()


def test_damaged_checkpoints_are_refused_with_the_way_out(finished, tmp_path, capsys):
    out = tmp_path / "damaged"
    shutil.copytree(finished[0], out)
    for path in (out / "checkpoints").glob("*/*.safetensors"):
        path.write_bytes(path.read_bytes()[:-1])
    assert run.main(["--resume", str(out)]) == 2
    error = capsys.readouterr().err
    assert "no checkpoint can be used" in error
    assert f"delete {out / 'checkpoints'} and resume again" in error
    shutil.rmtree(out / "checkpoints")
    assert run.main(["--resume", str(out)]) == 0
    assert same_model(out, finished[0])


def test_resume_refuses_other_settings_by_name(finished, capsys):
    out, _ = finished
    assert run.main(["--resume", str(out), "--lr", "0.5", "--seed", "4"]) == 2
    error = capsys.readouterr().err
    assert "lr (was 0.05, now 0.5)" in error
    assert "seed (was 0, now 4)" in error


# Files may have 60 kB, as on a full disk; a linear model has 123 kB. LIFT: until that round.
FULL = """
import resource, sys
from c2v_sim.run import __main__ as run
from c2v_sim.run.progress import Progress
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
prepare, show, lift = run.prepare, Progress.round_done, int(sys.argv.pop(1))
def limited(arguments):
    ready = prepare(arguments)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, hard))
    return ready
def lifting(self, record):
    if record.round == lift:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    show(self, record)
run.prepare, Progress.round_done = limited, lifting
sys.exit(run.main(sys.argv[1:]))
"""
LINEAR = [*TINY, "--model", "linear", "--rounds", "7", "--checkpoint-every", "2"]


@pytest.fixture(scope="module")
def linear(tmp_path_factory):
    os.environ["C2V_DATA"] = str(tmp_path_factory.getbasetemp() / "data")
    out = tmp_path_factory.mktemp("run") / "linear"
    assert run.main([*LINEAR, "--out", str(out)]) == 0
    return out


def with_full_disk(out, lift):
    command = [sys.executable, "-P", "-c", FULL, str(lift), *LINEAR, "--out", str(out)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_a_full_disk_is_said_once_and_what_is_not_saved_at_the_end(linear, tmp_path, capsys):
    out = tmp_path / "full"
    done = with_full_disk(out, lift=0)
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("warning: cannot write") == 1
    assert "File too large" in done.stderr
    assert "tries again every 2 rounds" in done.stderr
    last = done.stderr.splitlines()[-1]
    assert "Not saved: the state after round 7 (a resume goes on after round 0)" in last
    assert "model.safetensors" in last
    assert "mean over clients" in done.stdout  # the result is shown all the same
    assert rounds_of(out) == rounds_of(linear)  # small enough
    assert list((out / "checkpoints").iterdir()) == []
    assert not list(out.glob("*.partial"))
    assert run.main(["--resume", str(out)]) == 0
    assert same_model(out, linear)


def test_a_disk_with_room_again_gets_everything(linear, tmp_path):
    out = tmp_path / "freed"
    done = with_full_disk(out, lift=5)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("warning: cannot write") == 1
    assert "can be written again; all rounds up to 6 are saved" in done.stderr
    assert rounds_of(out) == rounds_of(linear)
    assert same_model(out, linear)
    assert {p.name for p in (out / "checkpoints").iterdir()} == {"000006", "000007"}


def test_records_that_did_not_fit_are_written_with_the_next_checkpoint(
    linear, tmp_path, monkeypatch, capsys
):
    append, out = run.run_directory.append_round, tmp_path / "torn"

    def torn(path, record):
        if record.round == 3:
            with (path / "rounds.jsonl").open("a") as file:
                file.write('{"dataset": "sha')
            raise OSError(28, "No space left on device", "rounds.jsonl")
        append(path, record)

    monkeypatch.setattr(run.run_directory, "append_round", torn)
    assert run.main([*LINEAR, "--out", str(out)]) == 0
    error = capsys.readouterr().err
    assert "rounds.jsonl: No space left on device" in error
    assert "can be written again; all rounds up to 4 are saved" in error
    assert rounds_of(out) == rounds_of(linear)


def test_only_the_checkpoint_missing_is_a_warning(linear, tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device", "checkpoints")

    monkeypatch.setattr("c2v_sim.run.journal.save_checkpoint", full)
    out = tmp_path / "warned"
    assert run.main([*LINEAR, "--out", str(out)]) == 0
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("c2v_sim: warning: ")
    assert "the state after round 7" in last
    assert same_model(out, linear)


def test_deterministic_is_a_setting_and_holds_in_the_lanes(tmp_path, monkeypatch, capsys):
    modes, batch = set(), ResidentData.batch

    def watching(self, ids, generator=None):
        name = threading.current_thread().name.split("_")[0]
        if name == "lane":
            modes.add(torch.get_deterministic_debug_mode())
        return batch(self, ids, generator)

    monkeypatch.setattr(ResidentData, "batch", watching)
    before = torch.get_deterministic_debug_mode()
    flags = [*TINY, "--rounds", "1", "--out"]
    assert run.main([*flags, str(tmp_path / "on")]) == 0
    assert modes == {2}
    modes.clear()
    assert run.main([*flags, str(tmp_path / "off"), "--no-deterministic"]) == 0
    assert modes == {0}
    assert torch.get_deterministic_debug_mode() == before
    assert same_model(tmp_path / "on", tmp_path / "off")  # on the CPU it changes nothing
    assert run.main(["--resume", str(tmp_path / "on"), "--no-deterministic"]) == 2
    assert "deterministic (was True, now False)" in capsys.readouterr().err


def test_cifar10_without_the_data_is_called_a_stand_in_everywhere(tmp_path, monkeypatch, capsys):
    from c2v_sim.data.sources import cifar10, shapes
    from c2v_sim.system.errors import Unreachable

    def unreachable(*_, **__):
        raise Unreachable("no network in this test")

    monkeypatch.setattr(cifar10, "fetch", unreachable)
    monkeypatch.setattr(shapes, "TRAIN_SIZE", 400)
    monkeypatch.setattr(shapes, "TEST_SIZE", 100)
    flags = ["--dataset", "cifar10", *TINY[4:], "--model", "linear"]
    assert run.main([*flags, "--require-real-data", "--out", str(tmp_path / "a")]) == 2
    assert not (tmp_path / "a").exists()
    capsys.readouterr()
    out = tmp_path / "b"
    assert run.main([*flags, "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert "STAND-IN" in shown.err
    assert "cifar10-standin(shapes)" in shown.out
    for file in filter(Path.is_file, out.rglob("*")):
        if file.suffix not in (".png", ".npz"):  # a picture's title; sample ids
            assert b"cifar10-standin(shapes)" in file.read_bytes(), file.name
