"""The command, as a user types it: in a process of its own where signals and exit codes matter."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from c2v_sim import run
from c2v_sim.config import RunConfig, make_config, read_toml
from c2v_sim.models import build_model

TINY = ["--train-size", "400", "--test-size", "100", "--clients", "8", "--participation", "0.25"]
TINY += ["--rounds", "3", "--local-epochs", "1", "--batch-size", "16"]


@pytest.fixture(autouse=True)
def data_dir(tmp_path_factory, monkeypatch):
    """Rendered images are cached outside the user's folder, once for all tests here."""
    folder = tmp_path_factory.getbasetemp() / "data"
    monkeypatch.setenv("C2V_DATA", str(folder))
    return folder


def c2v(*arguments, **options):
    command = [sys.executable, "-P", "-m", "c2v_sim.run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


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
    first = run.default_directory(RunConfig(), "cifar10-standin(shapes)")
    assert str(first).startswith("runs/")
    assert first.name.endswith("cifar10-standin-shapes-fedavg-0")
    first.mkdir(parents=True)
    assert run.default_directory(RunConfig(), "cifar10-standin(shapes)") != first


def test_print_config_is_a_config(tmp_path, capsys):
    assert run.main(["--preset", "paper", "--rounds", "7", "--print-config"]) == 0
    file = tmp_path / "settings.toml"
    file.write_text(capsys.readouterr().out)
    config = make_config(read_toml(file))
    assert (config.model, config.rounds) == ("resnet18", 7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch-size", "0"], "batch_size must be at least 1, got 0"),
        (["--clients", "500", "--train-size", "400", "--test-size", "9"], "clients"),
        (["--alpha", "0.1", "--partition", "iid"], "alpha = 0.1 has no effect"),
        (["--config", "absent.toml"], "cannot read the configuration absent.toml"),
        (["--resume", "absent"], "no run directory"),
        (["--improve", "sampling"], "needs a client index"),
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
    flags += ["--train-size", "240", "--test-size", "120", "--model", "linear"]
    assert run.main([*flags, "--out", str(out)]) == 0
    assert len(rounds_of(out)[0]["accuracy_domains"]) == 6
    assert json.loads((out / "manifest.json").read_text())["partition"]["clients"] == 12


def test_nan_stops_with_round_and_client_and_keeps_what_was_saved(tmp_path, capsys):
    out = tmp_path / "nan"
    assert run.main([*TINY, "--lr", "1e30", "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert "round 1, client" in error
    assert str(out) in error
    assert (out / "manifest.json").exists()
    assert (out / "checkpoint.safetensors").exists()


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
    assert f"--resume {out}" in error
    assert run.main(["--resume", str(out), "--lanes", "1"]) == 0
    assert rounds_of(out) == rounds_of(reference)
    for name, tensor in load_file(reference / "model.safetensors").items():
        assert torch.equal(load_file(out / "model.safetensors")[name], tensor), name


def test_resume_after_kill_gives_the_same_bits(finished, tmp_path):
    reference, _ = finished
    out = tmp_path / "killed"
    command = [sys.executable, "-P", "-m", "c2v_sim.run", *TINY, "--out", str(out)]
    command += ["--checkpoint-every", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if line.startswith("round 2"):
            time.sleep(0.05)
            process.kill()
            break
    process.wait(timeout=60)
    assert run.main(["--resume", str(out)]) == 0
    assert rounds_of(out) == rounds_of(reference)


def test_resume_refuses_other_settings_by_name(finished, capsys):
    out, _ = finished
    assert run.main(["--resume", str(out), "--lr", "0.5", "--seed", "4"]) == 2
    error = capsys.readouterr().err
    assert "lr (was 0.05, now 0.5)" in error
    assert "seed (was 0, now 4)" in error


def test_a_full_disk_is_reported_with_the_remedy(tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device", "rounds.jsonl")

    monkeypatch.setattr(run.report, "append_round", full)
    assert run.main([*TINY, "--out", str(tmp_path / "full")]) == 1
    error = capsys.readouterr().err
    assert "rounds.jsonl: No space left on device" in error
    assert "--resume" in error


def test_cifar10_without_the_data_is_called_a_stand_in_everywhere(tmp_path, monkeypatch, capsys):
    from c2v_sim import datasets
    from c2v_sim.download import Unreachable

    def unreachable(*_, **__):
        raise Unreachable("no network in this test")

    monkeypatch.setattr(datasets.cifar10, "fetch", unreachable)
    monkeypatch.setattr(datasets, "SHAPES_TRAIN", 400)
    monkeypatch.setattr(datasets, "SHAPES_TEST", 100)
    flags = ["--dataset", "cifar10", *TINY[4:], "--model", "linear"]
    assert run.main([*flags, "--require-real-data", "--out", str(tmp_path / "a")]) == 2
    assert not (tmp_path / "a").exists()
    capsys.readouterr()
    out = tmp_path / "b"
    assert run.main([*flags, "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert "STAND-IN" in shown.err
    assert "cifar10-standin(shapes)" in shown.out
    for file in out.iterdir():
        if file.suffix not in (".png", ".npz"):  # a picture's title; sample ids
            assert b"cifar10-standin(shapes)" in file.read_bytes(), file.name
