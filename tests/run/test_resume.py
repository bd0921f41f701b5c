"""What a resume may find changed, and what it refuses by name; more rounds than at first."""

import json
import shutil

import numpy as np
import pytest
import torch
from plain_run import PLAIN

from c2v_sim.index.client_index import ClientIndex
from c2v_sim.models import build_model
from c2v_sim.run import __main__ as run
from c2v_sim.run.resume import began_with

TINY = ["--train-size", "400", "--test-size", "100", "--clients", "8", "--participation", "0.25"]
TINY += ["--local-epochs", "1", "--batch-size", "16", "--model", "linear", "--lanes", "1"]
TINY += PLAIN


@pytest.fixture(autouse=True, scope="module")
def data_dir(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("C2V_DATA", str(tmp_path_factory.getbasetemp() / "data"))
        yield


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A run of two rounds, by a client index and from a file of weights."""
    folder = tmp_path_factory.mktemp("begun")
    weights = folder / "weights.pth"
    shape = {"classes": 10, "input_shape": (32, 32, 3)}
    torch.save(build_model("linear", **shape, seed=5).state_dict(), weights)
    flags = [*TINY, "--rounds", "2", "--improve", "sampling", "--index", "feature-average"]
    assert run.main([*flags, "--pretrained", str(weights), "--out", str(folder / "run")]) == 0
    return folder


@pytest.fixture
def copied(begun, tmp_path):
    """A copy of that run's directory, which a test may change."""
    return shutil.copytree(begun / "run", tmp_path / "run")


def refused(out, capsys):
    """The sentence with which a resume is refused; nothing in the directory may change by it."""
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    capsys.readouterr()
    assert run.main(["--resume", str(out)]) == 2
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before
    return capsys.readouterr().err


def edit(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_a_folder_that_cannot_be_looked_into_is_named(tmp_path, capsys):
    """As one without permission, which root always has."""
    assert run.main(["--resume", str(tmp_path / ("x" * 300))]) == 2
    assert "xxx cannot be read: File name too long" in capsys.readouterr().err


def change_manifest(out, change):
    facts = json.loads((out / "manifest.json").read_text())
    change(facts)
    (out / "manifest.json").write_text(json.dumps(facts))


def test_an_unchanged_run_is_resumed_without_a_word_of_warning(copied, capsys):
    assert run.main(["--resume", str(copied)]) == 0
    assert "warning" not in capsys.readouterr().err


def test_another_partition_is_refused(copied, tmp_path, capsys):
    flags = [*TINY, "--rounds", "1", "--seed", "3", "--out", str(tmp_path / "other")]
    assert run.main(flags) == 0
    shutil.copy(tmp_path / "other" / "partition.npz", copied)
    error = refused(copied, capsys)
    assert "partition.npz is another one than the run began with (SHA-256 was " in error
    assert "put back what the run began with, or start a new run" in error


def test_a_setting_edited_in_the_file_is_refused_by_name(copied, capsys):
    edit(copied / "config.toml", "lr = 0.05", "lr = 0.5")
    edit(copied / "config.toml", "local_epochs = 1\n", "local_epochs = 2\n")
    error = refused(copied, capsys)
    assert "config.toml was changed: " in error
    assert "lr (was 0.05, now 0.5)" in error
    assert "local_epochs (was 1, now 2)" in error


def test_a_setting_that_a_resume_may_change_may_be_edited(copied):
    edit(copied / "config.toml", "lanes = 1\n", "lanes = 2\n")
    assert run.main(["--resume", str(copied), "--checkpoint-every", "3"]) == 0


def test_another_index_is_refused(copied, capsys):
    file = copied / "index.safetensors"
    index = ClientIndex.load(file)
    index.feature.neg_()
    index.save(file)
    error = refused(copied, capsys)
    assert "index.safetensors is another one than the run began with" in error


def test_another_pretrained_file_is_refused(copied, begun, capsys):
    weights = begun / "weights.pth"
    before = weights.read_bytes()
    torch.save({k: -t for k, t in torch.load(weights).items()}, weights)
    error = refused(copied, capsys)
    weights.write_bytes(before)
    assert "the pretrained file weights.pth is another one than the run began with" in error


def test_other_versions_are_a_warning(copied, capsys):
    change_manifest(copied, lambda facts: facts["versions"].update(torch="1.0", c2v_sim="0.0.1"))
    assert run.main(["--resume", str(copied)]) == 0
    error = capsys.readouterr().err
    assert "warning: the run began with other versions: c2v_sim was 0.0.1, is " in error
    assert "torch was 1.0, is " in error


def test_a_run_from_before_these_were_kept_goes_on(copied):
    def as_it_was(facts):
        del facts["settings"], facts["versions"], facts["index"]["sha256"]

    change_manifest(copied, as_it_was)
    assert run.main(["--resume", str(copied)]) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "manifest.json is cut off or damaged: it must hold an object"),
        ("", "manifest.json is cut off or damaged"),
        ('{"data": {"na', "manifest.json is cut off or damaged"),
        ('{"settings": 3}', "'settings' of manifest.json is damaged: 3"),
        ("{}", "the run began on None"),
    ],
)
def test_a_damaged_manifest_is_named(copied, capsys, text, message):
    (copied / "manifest.json").write_text(text)
    assert message in refused(copied, capsys)


def test_a_manifest_damaged_before_the_index_was_there_is_named(copied, capsys):
    """The index is added to the manifest after the directory was made."""
    (copied / "index.safetensors").unlink()
    (copied / "manifest.json").write_text('{"data": ')
    assert "manifest.json is cut off" in refused(copied, capsys)


@pytest.mark.parametrize("text", ["[]", "null", "3"])
def test_a_checkpoint_without_a_manifest_object_is_passed_over(copied, capsys, text):
    for file in copied.glob("checkpoints/*/manifest.json"):
        file.write_text(text)
    assert run.main(["--resume", str(copied)]) == 2
    assert "it must hold an object" in capsys.readouterr().err


# ---- more rounds ----------------------------------------------------------------------------

LONG = [*TINY, "--algorithm", "feddyn", "--eval-every", "2", "--checkpoint-every", "4"]


def train(out, rounds):
    assert run.main([*LONG, "--rounds", str(rounds), "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def seven(tmp_path_factory):
    return train(tmp_path_factory.mktemp("long") / "seven", 7)


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    return train(tmp_path_factory.mktemp("short") / "three", 3)


def contents(out):
    """What the run came to, without the seconds that it took."""
    lines = (out / "rounds.jsonl").read_text().splitlines()
    records = [json.loads(line) | {"seconds": None} for line in lines]
    result = json.loads((out / "result.json").read_text())
    result = {name: value for name, value in result.items() if "seconds" not in name}
    state = {p.name: p.read_bytes() for p in (out / "checkpoints").glob("000007/*.safetensors")}
    return records, result, (out / "config.toml").read_text(), state


def test_a_finished_run_goes_on_to_the_bits_of_a_longer_one(three, seven, tmp_path):
    """Its third round was evaluated because it was the last; of seven rounds it is not."""
    out = shutil.copytree(three, tmp_path / "longer")
    assert json.loads((out / "rounds.jsonl").read_text().splitlines()[2])["accuracy"] is not None
    assert run.main(["--resume", str(out), "--rounds", "7"]) == 0
    assert contents(out) == contents(seven)
    assert (out / "model.safetensors").read_bytes() == (seven / "model.safetensors").read_bytes()
    table = [(f / "rounds.csv").read_text().splitlines() for f in (out, seven)]
    assert [line.split(",")[:7] for line in table[0]] == [line.split(",")[:7] for line in table[1]]
    facts, whole = (json.loads((f / "manifest.json").read_text()) for f in (out, seven))
    assert facts["rounds_changed"] == ["3 to 7 after round 3"]
    assert facts["client_state"] == whole["client_state"]
    assert run.main(["--resume", str(out)]) == 0  # and is finished now


def test_killed_while_it_is_made_longer_it_still_ends_in_the_same_bits(
    three, seven, tmp_path, monkeypatch
):
    out = shutil.copytree(three, tmp_path / "killed")

    def killed(*_):
        raise SystemExit("as by a kill")

    for place in ("c2v_sim.run.train.go_on", "c2v_sim.run.train.show_start"):
        with monkeypatch.context() as patch:
            patch.setattr(place, killed)
            with pytest.raises(SystemExit):
                run.main(["--resume", str(out), "--rounds", "7"])
    assert not (out / "result.json").exists()  # it is not finished
    assert run.main(["--resume", str(out)]) == 0
    assert contents(out) == contents(seven)


def test_a_run_is_not_made_shorter_than_it_is(seven, tmp_path, capsys):
    out = shutil.copytree(seven, tmp_path / "shorter")
    assert run.main(["--resume", str(out), "--rounds", "6"]) == 2
    assert "7 rounds are done, so rounds must be at least 8, got 6" in capsys.readouterr().err
    edit(out / "config.toml", "rounds = 7\n", "rounds = 6\n")
    assert "7 rounds are done" in refused(out, capsys)


def test_the_last_round_is_evaluated_whatever_the_number(seven, three, tmp_path):
    out = shutil.copytree(three, tmp_path / "five")
    assert run.main(["--resume", str(out), "--rounds", "5"]) == 0
    records = contents(out)[0]
    assert records[:4] == contents(seven)[0][:4]
    assert records[4]["accuracy"] is not None
    assert json.loads((out / "result.json").read_text())["rounds"] == 5


def test_the_hashes_are_of_what_is_in_the_files(begun):
    facts = json.loads((begun / "run" / "manifest.json").read_text())
    saved = np.load(begun / "run" / "partition.npz")
    assert facts["partition"]["sha256"] == str(saved["sha256"])
    assert began_with(begun / "run", "settings")["improve"] == ["sampling"]
    assert not {"rounds", "lanes", "data_dir"} & facts["settings"].keys()
