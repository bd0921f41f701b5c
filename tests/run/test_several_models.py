"""A run with clusters, personal classifiers and held-out clients: files, end and report."""

import json
import re

import pytest
from safetensors.torch import load_file

from c2v_sim.report.__main__ import main as report
from c2v_sim.run.__main__ import main

FLAGS = ["--train-size=400", "--test-size=200", "--clients=12", "--participation=0.4"]
FLAGS += ["--local-epochs=1", "--batch-size=16", "--model=linear", "--hold-out-clients=0.25"]
FLAGS += ["--improve", "clustering", "personalization", "--index=label-histogram", "--clusters=3"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The same run whole, and resumed after two rounds."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("C2V_DATA", str(folder / "data"))
        whole, parts = folder / "whole", folder / "parts"
        assert main([*FLAGS, "--rounds=3", "--lanes=1", "--out", str(whole)]) == 0
        assert main([*FLAGS, "--rounds=2", "--lanes=3", "--out", str(parts)]) == 0
        assert main(["--resume", str(parts), "--rounds", "3"]) == 0
        yield whole, parts


def rounds_of(folder):
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]


def test_a_resumed_run_ends_in_the_same_bits(runs):
    whole, parts = runs
    assert rounds_of(parts) == rounds_of(whole)
    first, second = ((path / "model.safetensors").read_bytes() for path in runs)
    assert first == second


def test_every_output_says_which_models_were_tested(runs, capsys):
    whole, _ = runs
    last = rounds_of(whole)[-1]
    manifest, result = (
        json.loads((whole / f"{name}.json").read_text()) for name in ("manifest", "result")
    )
    assert last["tested"] == manifest["tested"] == result["tested"] == "personal"
    assert manifest["partition"]["clients"] == len(result["clusters"]) == 9
    assert manifest["partition"]["held_out"] == 3
    assert set(result["clusters"]) == {0, 1, 2}
    assert result["held_out_accuracy"] == last["held_out"]
    assert set(last["held_out"]) == {"cluster", "personal"}
    assert result["final_accuracy_shared"] == last["accuracy_shared"]
    assert (whole / "rounds.csv").read_text().splitlines()[1].split(",")[3] == "personal"
    names = {name.split(".")[0] for name in load_file(whole / "model.safetensors")}
    assert names == {"cluster0", "cluster1", "cluster2"}


def test_the_report_shows_clusters_and_what_changed(runs, tmp_path, capsys):
    whole, _ = runs
    assert report([str(whole), "-o", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    data = json.loads(re.search(r'<script id="data"[^>]*>(.*?)</script>', page, re.DOTALL)[1])
    (run,) = data["runs"]
    result = json.loads((whole / "result.json").read_text())
    assert run["projection"]["clusters"] == result["clusters"]
    assert len(run["projection"]["x"]) == 9
    tested = [i for i, v in enumerate(result["final_client_accuracy"]) if v is not None]
    assert run["changes"]["ids"] == tested
    after = [round(100 * result["final_client_accuracy"][i], 2) for i in tested]
    assert run["changes"]["after"] == pytest.approx(after, abs=0.01)
    assert "personal models (not personal " in run["facts"]
    assert "never trained on: cluster " in run["facts"]
    assert "of the personal model's accuracy" in data["words"]
    assert {"projection", "changes"} <= set(data["figures"])
