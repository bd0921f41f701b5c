"""eval_every = 0: a run without accuracies, from the API to the tables."""

import json

import pytest
from federations import image_federation
from plain_run import PLAIN

from c2v_sim import RunConfig, Simulator
from c2v_sim.report.__main__ import make_report
from c2v_sim.run import __main__ as run
from c2v_sim.run.reader import read_run
from c2v_sim.sweep.file import cell_folder, read_sweep
from c2v_sim.sweep.tables.write import write_tables

SMALL = ["--train-size", "200", "--test-size", "60", "--clients", "6", "--model", "linear"]
SMALL += ["--cohort", "2", "--local-epochs", "1", "--batch-size", "16", *PLAIN]
SWEEP = """
title = "Tiny"
about = "Without evaluation."
[base]
dataset = "shapes"
train_size = 200
test_size = 60
clients = 6
model = "linear"
rounds = 2
eval_every = 0
local_epochs = 1
[axes]
algorithm = ["fedavg"]
[axes.case]
original = {}
[table]
rows = ["algorithm"]
columns = "case"
"""


@pytest.fixture(autouse=True)
def data_dir(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("C2V_DATA", str(tmp_path_factory.getbasetemp() / "data"))


def test_someone_who_evaluates_by_themselves():
    config = RunConfig(model="linear", rounds=3, eval_every=0, cohort=2, local_epochs=1)
    simulator = Simulator(image_federation(), config)
    result = simulator.run()
    assert [record.accuracy for record in result.records] == [None] * 3
    assert (result.final.round, result.final.accuracy, result.best.accuracy) == (3, None, None)
    assert simulator.client_accuracy is None
    assert 0 <= simulator.evaluate().mean <= 1  # whenever they like
    evaluated = Simulator(image_federation(), RunConfig(**vars(config) | {"eval_every": 1}))
    evaluated.run()
    first, second = simulator.global_model(), evaluated.global_model()
    assert all(first[name].equal(second[name]) for name in first)


def test_the_command_its_directory_resume_and_report(tmp_path, capsys):
    out = tmp_path / "run"
    assert run.main([*SMALL, "--rounds", "2", "--eval-every", "0", "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "not evaluated (eval_every = 0); training loss" in said.out
    assert "%" not in said.out + said.err
    result = json.loads((out / "result.json").read_text())
    assert {result[k] for k in ("best_accuracy", "best_round", "final_accuracy")} == {None}
    assert not (out / "accuracy.png").exists()
    assert "accuracy" in (out / "rounds.csv").read_text().splitlines()[0]
    assert run.main(["--resume", str(out), "--rounds", "3"]) == 0
    assert [r.accuracy for r in read_run(out).records] == [None] * 3
    whole = tmp_path / "whole"
    assert run.main([*SMALL, "--rounds", "3", "--eval-every", "0", "--out", str(whole)]) == 0
    models = [(folder / "model.safetensors").read_bytes() for folder in (out, whole)]
    assert models[0] == models[1]
    assert run.main(["--resume", str(out)]) == 0  # nothing is left to do
    page = make_report([out, whole], tmp_path / "report.html")
    assert "no accuracy" in page.read_text()


def test_a_table_says_what_was_not_evaluated(tmp_path):
    (tmp_path / "tiny.toml").write_text(SWEEP)
    sweep = read_sweep(tmp_path / "tiny.toml")
    (cell,) = sweep.cells
    folder = cell_folder(tmp_path / "out", cell)
    flags = [*SMALL[:8], "--rounds", "2", "--eval-every", "0", "--local-epochs", "1", *PLAIN]
    assert run.main([*flags, "--out", str(folder)]) == 0
    write_tables(sweep, tmp_path / "out")
    assert "not evaluated" in (tmp_path / "out" / "table.md").read_text()


def test_a_comparison_needs_accuracies(tmp_path, capsys):
    flags = ["--beside-original", "--eval-every", "0", "--out", str(tmp_path / "both")]
    assert run.main(flags) == 2
    assert "compares accuracies, so eval_every must be at least 1" in capsys.readouterr().err
