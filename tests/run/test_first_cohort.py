"""A first cohort that another run has trained ends in the bits of one trained here."""

import json
import shutil

import pytest
import torch
from federations import bits, image_federation, made_up_index, simulator_with

from c2v_sim import RunConfig
from c2v_sim.algorithms import ALGORITHMS
from c2v_sim.run.__main__ import main
from c2v_sim.run.first_cohort import FirstCohort, likely_group
from c2v_sim.system import tensor_file

CONFIG = {"rounds": 3, "participation": 0.5, "local_epochs": 1, "batch_size": 8, "lr": 0.05}


def trained(folder, index=None, **settings):
    """The state after all rounds, the records without times, and the FirstCohort."""
    federation = image_federation()
    simulator = simulator_with(federation, RunConfig(**(CONFIG | settings)), index)
    first = FirstCohort(folder, simulator) if folder else None
    records = list(simulator.rounds())
    state = bits(simulator.state(), ordered=False)
    simulator.close()
    return state, [vars(record) | {"seconds": None} for record in records], first


@pytest.mark.parametrize("improve", [(), ("local",)])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_bits_are_those_of_a_run_by_itself(tmp_path, algorithm, improve):
    own = {"algorithm": algorithm, "model": "cnn", "improve": improve}
    alone = trained(None, lanes=1, **own)
    giver, taker = trained(tmp_path, lanes=1, **own), trained(tmp_path, lanes=2, **own)
    assert alone[:2] == giver[:2] == taker[:2]
    assert (giver[2].hash, taker[2].hash) == ("", next(tmp_path.iterdir()).stem)


def test_batch_statistics_and_stacked_models_are_shared_too(tmp_path):
    for model in ("resnet8", "linear"):
        folder = tmp_path / model
        alone, _, taker = (trained(f, model=model, rounds=2) for f in (None, folder, folder))
        assert alone[:2] == taker[:2]
        assert taker[2].hash


def test_what_acts_later_shares_and_what_acts_before_does_not(tmp_path):
    first = trained(tmp_path, model="linear")
    later = [
        {"rounds": 2, "eval_every": 2, "state_dtype": "bfloat16"},
        {"improve": ("sampling", "aggregation"), "tau": 0.1, "gamma": 0.2},
        {"algorithm": "fedavgm", "server_momentum": 0.5},
    ]
    for settings in later:
        taker = trained(tmp_path, **({"model": "linear"} | settings))
        assert taker[2].hash
        assert taker[:2] == trained(None, **({"model": "linear"} | settings))[:2]
    before = [
        *({"lr": 0.04}, {"batch_size": 4}, {"local_epochs": 2}, {"seed": 1}, {"momentum": 0.9}),
        *({"algorithm": "fedprox"}, {"algorithm": "feddyn"}, {"model": "mlp"}),
        *({"weight_decay": 0.1}, {"augment": "crop-flip"}, {"improve": ("local",)}),
        {"participation": 0.7},
    ]
    for settings in before:
        assert not trained(tmp_path, **({"model": "linear", "rounds": 1} | settings))[2].hash
    assert len(list(tmp_path.iterdir())) == 1 + len(before)
    assert first[2].hash == ""


def test_a_regulariser_with_another_index_trains_by_itself(tmp_path):
    federation = image_federation()
    local = {"improve": ("local",), "model": "linear", "rounds": 1}
    trained(tmp_path, **local)
    assert trained(tmp_path, **local)[2].hash
    assert not trained(tmp_path, made_up_index(federation, seed=6), **local)[2].hash
    assert not trained(tmp_path, local_weight=0.5, **local)[2].hash


def test_the_group_of_a_sweep_follows_the_settings():
    base = RunConfig()
    later = RunConfig(improve=("sampling",), tau=0.3, rounds=7, index_epochs=3)
    assert likely_group(base) == likely_group(later)
    local = RunConfig(improve=("local",), index_epochs=3)
    assert likely_group(local) != likely_group(RunConfig(improve=("local",)))
    assert likely_group(local) != likely_group(base)
    assert likely_group(base) != likely_group(RunConfig(seed=1))


def test_a_damaged_file_is_trained_anew(tmp_path, capsys):
    trained(tmp_path, model="linear", rounds=1)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-3])
    assert not trained(tmp_path, model="linear", rounds=1)[2].hash
    assert "damaged" in capsys.readouterr().err
    assert trained(tmp_path, model="linear", rounds=1)[2].hash


RUN = "--model linear --train-size 300 --test-size 60 --clients 6 --participation 0.5 --rounds 3"
RUN += " --local-epochs 1 --batch-size 16"


def test_the_command_records_whose_cohort_it_was_and_how_long_it_took(
    tmp_path, tmp_path_factory, monkeypatch
):
    monkeypatch.setenv("C2V_DATA", str(tmp_path_factory.getbasetemp() / "data"))
    shared = ["--first-cohort", str(tmp_path / "shared")]
    runs = {"alone": [], "giver": shared, "taker": [*shared, "--rounds", "2"]}
    for name, flags in runs.items():
        if name == "taker":
            (file,) = (tmp_path / "shared").iterdir()
            kept = tensor_file.read(file)
            assert 0 < kept["seconds"].item() < 500
            tensor_file.write(file, kept | {"seconds": torch.tensor([1000.0])})
        assert main([*RUN.split(), *flags, "--out", str(tmp_path / name)]) == 0
    facts = {n: json.loads((tmp_path / n / "manifest.json").read_text()) for n in runs}
    assert facts["alone"]["first_cohort"] is facts["giver"]["first_cohort"] is None
    assert facts["taker"]["first_cohort"] == file.stem
    lines = {n: (tmp_path / n / "rounds.jsonl").read_text().splitlines() for n in runs}
    records = {n: list(map(json.loads, lines[n])) for n in runs}
    times = {n: records[n][0]["seconds"]["train"] for n in runs}
    assert 0 < times["giver"] < 500
    assert 1000 <= times["taker"] < 1500
    for record in (record for of_run in records.values() for record in of_run):
        del record["seconds"]
    assert records["alone"] == records["giver"]
    assert records["alone"][:2] == records["taker"]
    # A run that is resumed before its first checkpoint takes the cohort over again.
    out = tmp_path / "taker"
    before = (out / "model.safetensors").read_bytes()
    (out / "rounds.jsonl").unlink()
    shutil.rmtree(out / "checkpoints")
    assert main(["--resume", str(out), *shared]) == 0
    assert (out / "model.safetensors").read_bytes() == before
    assert json.loads((out / "manifest.json").read_text())["first_cohort"] == file.stem
