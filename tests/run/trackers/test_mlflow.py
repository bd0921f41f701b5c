"""--mlflow with the real package and a store of local files, read back by its own client."""

import json
import sys

import pytest
from federations import image_federation
from tracked_runs import TINY, records_of, stopped

from c2v_sim import RunConfig, Simulator
from c2v_sim.beside import command as beside
from c2v_sim.run import __main__ as run

pytest.importorskip("mlflow", reason="mlflow is not there (pip install 'c2v_sim[mlflow]')")
import mlflow

from c2v_sim.run.trackers import MLflow


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory, tmp_path, monkeypatch):
    monkeypatch.setenv("C2V_DATA", str(tmp_path_factory.getbasetemp() / "data"))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # for the client that reads
    for name in ("TRACKING_URI", "EXPERIMENT_NAME"):
        monkeypatch.delenv(f"MLFLOW_{name}", raising=False)
    monkeypatch.chdir(tmp_path)


def client_of(folder):
    return mlflow.MlflowClient(tracking_uri=(folder / "mlruns").as_uri())


def runs_in(folder, experiment="c2v_sim"):
    client = client_of(folder)
    place = client.get_experiment_by_name(experiment).experiment_id
    return client.search_runs([place])


def check_rounds(folder, run_id, wanted):
    """Every round once, in order."""
    client = client_of(folder)

    def points(key):
        return [(m.step, m.value) for m in client.get_metric_history(run_id, key)]

    assert points("train/loss") == [(r["round"], r["train_loss"]) for r in wanted]
    evaluated = [(r["round"], r["accuracy"]) for r in wanted if r["accuracy"] is not None]
    assert points("accuracy/accuracy") == evaluated
    neon = [(r["round"], r["accuracy_domains"][2]) for r in wanted if r["accuracy_domains"]]
    assert points("accuracy_by_domain/neon") == neon


def text(folder, run, name):
    place = folder / "mlruns" / run.info.experiment_id / run.info.run_id
    return (place / "artifacts" / name).read_bytes()


def test_rounds_settings_manifest_and_curve_arrive(tmp_path):
    out = tmp_path / "run"
    assert run.main([*TINY, "--eval-every", "2", "--mlflow", "--out", str(out)]) == 0
    (found,) = runs_in(tmp_path)
    assert found.info.run_name == f"{tmp_path.name}/run"
    assert found.info.status == "FINISHED"
    check_rounds(tmp_path, found.info.run_id, records_of(out))
    assert (found.data.params["rounds"], found.data.params["model"]) == ("6", "linear")
    result = json.loads((out / "result.json").read_text())
    assert found.data.metrics["best_accuracy"] == result["best_accuracy"]
    assert json.loads(text(tmp_path, found, "manifest.json")) == json.loads(
        (out / "manifest.json").read_text()
    )
    assert b"rounds = 6" in text(tmp_path, found, "config.toml")
    assert text(tmp_path, found, "accuracy.png")[:4] == b"\x89PNG"


def test_a_resume_goes_on_in_the_same_run_from_wherever_it_is_started(tmp_path, monkeypatch):
    out = tmp_path / "run"
    stopped(out, monkeypatch, 3, *TINY, "--mlflow", "--out", str(out))  # the checkpoint is of 2
    (found,) = runs_in(tmp_path)
    assert found.info.status == "KILLED"
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert run.main(["--resume", str(out), "--rounds", "8", "--mlflow"]) == 0
    assert not (tmp_path / "other" / "mlruns").exists()
    (again,) = runs_in(tmp_path)
    assert (again.info.run_id, again.info.status) == (found.info.run_id, "FINISHED")
    records = records_of(out)
    assert len(records) == 8
    check_rounds(tmp_path, again.info.run_id, records)


def test_a_log_is_whole_whichever_resume_had_the_flag(tmp_path, monkeypatch):
    out = tmp_path / "run"
    stopped(out, monkeypatch, 4, *TINY, "--out", str(out))
    assert run.main(["--resume", str(out), "--mlflow"]) == 0
    (found,) = runs_in(tmp_path)
    check_rounds(tmp_path, found.info.run_id, records_of(out))


def test_from_a_program_of_ones_own(tmp_path):
    config = RunConfig(model="linear", rounds=2, participation=0.5, local_epochs=1, batch_size=8)
    simulator = Simulator(image_federation(), config)
    result = simulator.run(observers=[MLflow(experiment="mine")])
    simulator.close()
    (found,) = runs_in(tmp_path, "mine")
    assert found.info.run_name == "user, linear, fedavg, seed 0"
    history = client_of(tmp_path).get_metric_history(found.info.run_id, "train/loss")
    assert [m.value for m in history] == [record.train_loss for record in result.records]


def test_two_runs_side_by_side_have_a_log_each(tmp_path, monkeypatch):
    monkeypatch.setattr(beside, "show_comparison", lambda out: 0)  # slow, and of no matter here
    out = tmp_path / "both"
    flags = [*TINY[:-2], "--improve", "sampling", "--index", "feature-average", "--rounds", "2"]
    assert run.main([*flags, "--beside-original", "--mlflow", "--out", str(out)]) == 0
    found = {r.info.run_name: r for r in runs_in(tmp_path)}
    assert set(found) == {"both/original", "both/client2vec"}
    produced = json.loads(text(tmp_path, found["both/client2vec"], "manifest.json"))
    assert produced["index"]["origin"] == "built"  # the index is made before a log begins


def test_a_log_that_fails_does_not_end_the_run(tmp_path, monkeypatch, capsys):
    log, out = mlflow.MlflowClient.log_batch, tmp_path / "run"

    def gone(self, run_id, metrics=(), **rest):
        if any(m.step == 3 for m in metrics):
            raise mlflow.MlflowException("the server is gone")
        log(self, run_id, metrics=metrics, **rest)

    with monkeypatch.context() as patch:
        patch.setattr(mlflow.MlflowClient, "log_batch", gone)
        assert run.main([*TINY, "--mlflow", "--out", str(out)]) == 0
    line = "warning: the log in MLflow ends here: the server is gone. The run goes on without it"
    assert capsys.readouterr().err.count(line) == 1
    assert len(records_of(out)) == 6
    assert run.main(["--resume", str(out), "--mlflow"]) == 0  # what is missing comes with it
    (found,) = runs_in(tmp_path)
    check_rounds(tmp_path, found.info.run_id, records_of(out))


def test_the_missing_package_is_refused_before_anything_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert run.main([*TINY, "--mlflow", "--out", str(tmp_path / "run")]) == 2
    assert "pip install 'c2v_sim[mlflow]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
