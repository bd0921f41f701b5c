"""A run that a client index improves: built once, cached, kept in the run directory, resumed."""

import json
import shutil
import subprocess
import sys

import pytest
from safetensors.torch import load_file

from c2v_sim.index.client_index import ClientIndex
from c2v_sim.run import files as run_directory
from c2v_sim.run.__main__ import main
from c2v_sim.run.index import CHECKPOINT

SMALL = [
    *("--train-size", "240", "--test-size", "60", "--clients", "8", "--participation", "0.25"),
    *("--partition", "iid", "--model", "linear", "--rounds", "3", "--local-epochs", "1"),
    *("--improve", "sampling", "aggregation", "local", "--index-epochs", "2"),
    *("--index-dropout", "0", "--lr", "0.01"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def first(data, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "first"
    assert main([*SMALL, "--data-dir", str(data), "--out", str(out)]) == 0
    return out


def outcome(folder):
    records = [
        json.loads(line) for line in (folder / run_directory.ROUNDS).read_text().splitlines()
    ]
    for record in records:
        del record["seconds"]
    model = load_file(folder / run_directory.MODEL)
    return records, {name: tensor.numpy().tobytes() for name, tensor in model.items()}


def test_the_index_is_kept_with_the_run_and_in_its_manifest(first):
    index = ClientIndex.load(first / run_directory.INDEX)
    facts = json.loads((first / run_directory.MANIFEST).read_text())
    assert facts["encoder"] == index.provenance["encoder"] == "builtin"
    assert facts["index"]["settings"]["epochs"] == 2
    assert facts["improve"] == ["sampling", "aggregation", "local"]
    assert not list(first.glob("index_training*"))
    result = json.loads((first / run_directory.RESULT).read_text())
    assert result["seconds_index"] == facts["index"]["seconds"] == index.seconds > 0
    assert result["index_origin"] == facts["index"]["origin"] == "built"
    both = result["seconds_index"] + result["seconds_rounds"]
    assert result["seconds"] == pytest.approx(both, abs=0.011)  # rounded
    records, model = outcome(first)
    assert len(records[0]["scores"]) == len(records[0]["history"]) == 8
    assert "c2v_projection.weight" in model


def test_a_cached_index_gives_the_same_bits_and_is_not_trained_again(
    first, data, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr("c2v_sim.index.build.build_index", None)  # would fail if it were called
    out = tmp_path / "second"
    assert main([*SMALL, "--data-dir", str(data), "--out", str(out)]) == 0
    assert outcome(out) == outcome(first)
    before, now = (json.loads((d / run_directory.RESULT).read_text()) for d in (first, out))
    assert now["seconds_index"] == before["seconds_index"]
    assert now["index_origin"] == "cache"
    said = capfd.readouterr()
    assert "client index: in the cache" in said.err
    cost = f"client index {now['seconds_index']:.1f} s (taken from the cache; it took this when"
    assert cost in said.out


def test_a_damaged_cached_index_is_built_anew(first, data, tmp_path, capfd):
    (cached,) = (data / "indices").iterdir()
    content = bytearray(cached.read_bytes())
    content[-1] ^= 1
    cached.write_bytes(content)
    out = tmp_path / "third"
    assert main([*SMALL, "--data-dir", str(data), "--out", str(out)]) == 0
    assert "built anew" in capfd.readouterr().err
    assert outcome(out) == outcome(first)


def test_a_given_index_file_is_used_or_refused_before_anything_is_written(
    first, data, tmp_path, capfd
):
    given = ["--index-file", str(first / run_directory.INDEX), "--data-dir", str(data)]
    out = tmp_path / "given"
    assert main([*SMALL, *given, "--out", str(out)]) == 0
    assert outcome(out) == outcome(first)
    out = tmp_path / "other"
    assert main([*SMALL, *given, "--seed", "1", "--out", str(out)]) == 2
    assert "made for another federation" in capfd.readouterr().err
    assert not out.exists()


TERMINATED = """
import os, signal, sys
from c2v_sim.run import __main__ as run, index
class Terminated(index.IndexProgress):
    def point(self, training):
        super().point(training)
        os.kill(os.getpid(), signal.SIGTERM)
index.IndexProgress = Terminated
sys.exit(run.main(sys.argv[1:]))
"""


def test_sigterm_while_the_index_trains_resumes_to_the_same_bits(first, tmp_path):
    """The signal comes after its first epoch."""
    out, data = tmp_path / "stopped", tmp_path / "data"
    words = [*SMALL, "--data-dir", str(data), "--out", str(out)]
    command = [sys.executable, "-P", "-c", TERMINATED, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 143, done.stderr
    assert "stopping after the steps in flight" in done.stderr
    assert "Traceback" not in done.stderr
    again = f"go on with: python -m c2v_sim.run --resume {out}"
    ended = f"c2v_sim: error: terminated while the client index was made; {again}"
    assert done.stderr.splitlines()[-1] == ended
    assert "NOT saved" not in done.stderr  # nothing is lost
    assert "rounds.csv" not in done.stderr  # which does not exist
    assert (out / CHECKPOINT).exists()
    assert not (out / run_directory.INDEX).exists()
    assert main(["--resume", str(out)]) == 0
    assert outcome(out) == outcome(first)


def test_the_checkpoint_of_an_index_that_is_there_is_deleted(first, tmp_path):
    """As after a kill between the two."""
    out = tmp_path / "killed"
    shutil.copytree(first, out)
    (out / CHECKPOINT).write_bytes(b"of a training that is done")
    assert main(["--resume", str(out)]) == 0
    assert not (out / CHECKPOINT).exists()
    assert outcome(out) == outcome(first)


@pytest.mark.parametrize("index", ["feature-average", "class-prototypes", "local-model-weights"])
def test_other_kinds_of_index(index, data, tmp_path):
    improve = ["local"] if index == "local-model-weights" else ["sampling", "aggregation", "local"]
    start = SMALL[: SMALL.index("--improve")]
    out = tmp_path / "run"
    arguments = [*start, "--improve", *improve, "--index", index, "--data-dir", str(data)]
    assert main([*arguments, "--out", str(out)]) == 0
    assert (out / run_directory.INDEX).exists() == (index != "local-model-weights")
    assert outcome(out)[0][-1]["accuracy"] > 0
