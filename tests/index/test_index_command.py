"""`python -m c2v_sim.index`, as a user types it."""

import json
import signal
import subprocess
import sys

import pytest

from c2v_sim.data.sources import made_up_speech, shakespeare
from c2v_sim.index import __main__ as index
from c2v_sim.index.client_index import ClientIndex
from c2v_sim.system.files import LOCK

TINY = ["--train-size", "360", "--test-size", "60", "--partition", "by-domain"]
TINY += ["--clients-per-domain", "2", "--epochs", "2", "--hidden", "32", "--threads", "1"]


@pytest.fixture(autouse=True)
def data_dir(tmp_path_factory, monkeypatch):
    """Images and embeddings are cached outside the user's folder, once for all tests here."""
    folder = tmp_path_factory.getbasetemp() / "data"
    monkeypatch.setenv("C2V_DATA", str(folder))
    return folder


def command(*arguments):
    return [sys.executable, "-P", "-m", "c2v_sim.index", *arguments]


def test_a_whole_index(tmp_path, capsys):
    out = tmp_path / "first"
    flags = [*TINY, "--data-dir", str(tmp_path / "data")]
    assert index.main([*flags, "--out", str(out), "--plot"]) == 0
    captured = capsys.readouterr()
    assert "within" in captured.out
    assert "builtin encoder" in captured.out
    announced, took = captured.err.index("client index: about"), captured.err.index("index: took")
    assert announced < captured.err.index("epoch 2/2  sim") < took
    made = ClientIndex.load(out / "index.safetensors")
    assert made.clients == 12
    summary = json.loads((out / "index.json").read_text())
    assert summary["quality"] == made.quality
    assert summary["encoder"] == "builtin"
    assert len(summary["curve"]) == 2
    assert summary["settings"]["epochs"] == 2
    assert {p.name for p in out.glob("*.png")} == {
        "similarity.png",
        "domains.png",
        "projection.png",
    }
    assert not list(out.glob("*.partial"))
    assert index.main([*flags, "--out", str(tmp_path / "cached")]) == 0
    errors = capsys.readouterr().err
    assert "epoch" not in errors.replace("2 epochs", "")
    assert "client index: in the cache\n" in errors
    assert f"index: from the cache; it took {made.seconds:.1f} s when it was built" in errors
    same = ClientIndex.load(tmp_path / "cached" / "index.safetensors")
    assert same.provenance == made.provenance
    assert (same.feature == made.feature).all()

    assert index.main([*TINY, "--out", str(out)]) == 2
    assert "exists and is never overwritten" in capsys.readouterr().err
    assert index.main(["--resume", str(out)]) == 2
    assert "nothing is left to do" in capsys.readouterr().err
    again = tmp_path / "pictures"
    assert index.main(["--plot", str(out / "index.safetensors"), "--out", str(again)]) == 0
    assert len(list(again.iterdir())) == 6


@pytest.mark.parametrize(
    "flags",
    [
        ["--strategy", "federated", "--local-epochs", "1"],
        ["--index", "class-prototypes"],
        ["--decoder", "mlp", "--omit-loss", "div", "orth"],
    ],
)
def test_variants(tmp_path, capsys, flags):
    out = tmp_path / "variant"
    assert index.main([*TINY, *flags, "--out", str(out)]) == 0
    settings = json.loads((out / "settings.json").read_text())
    made = ClientIndex.load(out / "index.safetensors")
    stored = made.provenance["settings"]
    assert stored == {name: settings[name] for name in stored}
    if "--omit-loss" in flags:
        assert settings["omit_loss"] == ["div", "orth"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--epochs", "0"], "epochs must be at least 1, got 0"),
        (["--omit-loss", "sim", "orth", "recon", "div"], "all four losses are omitted"),
        (["--alpha", "0.5"], "alpha = 0.5 has no effect with partition = by-domain"),
        (["--resume", "nowhere"], "no settings.json can be read there"),
        (["--plot", "nowhere.safetensors"], "cannot be read"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    tmp_path, monkeypatch, capsys, flags, message
):
    monkeypatch.chdir(tmp_path)
    assert index.main([*TINY, *flags]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def stopped(arguments, when, number):
    """Start the command and send it a signal at its first line that begins with `when`."""
    process = subprocess.Popen(command(*arguments), stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if line.startswith(when):
            break
    process.send_signal(number)
    errors = process.communicate(timeout=120)[1]
    assert process.returncode == 128 + number, errors
    assert "stopping after the steps in flight" in errors
    assert "Traceback" not in errors
    return errors


def test_ctrl_c_and_resume(tmp_path, capsys):
    """Interrupted after its first epochs, then terminated, resumed: as if never stopped."""
    slow = [*TINY, "--epochs", "9", "--hidden", "256"]
    out = tmp_path / "stopped"
    errors = stopped([*slow, "--out", str(out)], "epoch ", signal.SIGINT)
    assert f"interrupted; go on with: python -m c2v_sim.index --resume {out}" in errors
    assert (out / "training.safetensors").exists()  # long before the 30 seconds
    errors = stopped(["--resume", str(out)], "  directory:", signal.SIGTERM)
    assert "terminated; go on with" in errors
    assert not (out / "index.safetensors").exists()
    assert index.main(["--resume", str(out), "--epochs", "41"]) == 2
    assert "epochs (was 9, now 41)" in capsys.readouterr().err
    assert index.main(["--resume", str(out)]) == 0
    whole = tmp_path / "whole"
    other = ["--data-dir", str(tmp_path / "data")]  # where no index is cached
    assert index.main([*slow, *other, "--out", str(whole)]) == 0
    a, b = (ClientIndex.load(d / "index.safetensors") for d in (out, whole))
    for made in (a, b):  # the resumed one too: its parts are added up
        assert made.provenance.pop("seconds") >= made.provenance.pop("stages")["train"] > 0
    assert a.provenance == b.provenance
    assert (a.feature == b.feature).all()


def test_a_directory_in_which_another_process_works_is_left_alone(tmp_path, monkeypatch, capsys):
    """Resumed while the index trains: refused, and the training goes on as if alone."""
    out, train, codes = tmp_path / "busy", index.obtain_index, []

    def visited(*arguments, **options):
        codes.append(index.main(["--resume", str(out)]))
        codes.append(capsys.readouterr().err)
        return train(*arguments, **options)

    monkeypatch.setattr(index, "obtain_index", visited)
    assert index.main([*TINY, "--seed", "5", "--out", str(out)]) == 0
    refusal = f"c2v_sim: error: {out}: another process works in this directory; wait for it, or"
    assert codes[0] == 2
    assert refusal in codes[1]
    (out / "index.safetensors").unlink()
    codes.clear()
    assert index.main(["--resume", str(out)]) == 0
    assert codes[0] == 2
    assert refusal in codes[1]
    assert (out / "index.safetensors").exists()
    assert not (out / LOCK).exists()


def test_an_index_of_roles_from_their_texts(tmp_path, monkeypatch, capsys):
    few = made_up_speech.speech(roles=6, words=200)
    monkeypatch.setattr(shakespeare, "find", lambda folder: (few, "made up"))
    arguments = ["--dataset", "shakespeare", "--sample-fraction", "1", "--max-samples", "16"]
    arguments += ["--epochs", "1", "--hidden", "32", "--threads", "1", "--out", str(tmp_path / "a")]
    assert index.main(arguments) == 0
    assert "index of shakespeare, natural, 6 clients" in capsys.readouterr().err
    made = ClientIndex.load(tmp_path / "a" / "index.safetensors")
    assert made.feature.shape == made.label.shape == (6, 512)
    assert made.sizes.min() > 16
    assert made.provenance["class_names"] == list(shakespeare.ALPHABET)
    saved = json.loads((tmp_path / "a" / "settings.json").read_text())
    assert (saved["partition"], saved["clients"], saved["sample_fraction"]) == ("natural", 6, 1.0)
