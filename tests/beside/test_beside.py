"""--beside-original: the algorithm as it is and with the client index, trained and compared."""

import dataclasses
import json
import re
import shutil
import signal
import subprocess
import sys

import pytest
from plain_run import PLAIN

from c2v_sim.beside.table import write_comparison
from c2v_sim.config import FIELDS, saved_config
from c2v_sim.run import __main__ as run
from c2v_sim.run import build, train
from c2v_sim.run.files import RESULTS

SMALL = "--model linear --train-size 400 --test-size 100 --clients 8 --participation 0.5 --lr 0.005"
SMALL += " --rounds 8 --local-epochs 1 --batch-size 16 --checkpoint-every 3 --index feature-average"
SMALL += " --improve sampling aggregation local"
SMALL = SMALL.split()
HALVES = ("original", "client2vec")


@pytest.fixture(autouse=True)
def data_dir(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("C2V_DATA", str(tmp_path_factory.getbasetemp() / "data"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A pair that nobody stopped: its directory, what was shown, and how often data was loaded."""
    out, loads, load = tmp_path_factory.mktemp("pair") / "whole", [], build.load_dataset

    def counted(*arguments, **options):
        loads.append(arguments)
        return load(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("C2V_DATA", str(tmp_path_factory.getbasetemp() / "data"))
        patch.setattr(build, "load_dataset", counted)
        command = [sys.executable, "-P", "-m", "c2v_sim.run", "--beside-original", *SMALL]
        other = subprocess.run(
            [*command, "--out", str(out)], capture_output=True, text=True, timeout=300
        )
        assert other.returncode == 0, other.stderr
        assert run.main(["--beside-original", *SMALL, "--out", str(out.with_name("again"))]) == 0
    return out, other, len(loads)


def records_of(folder):
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def outcome(out):
    """What must be the same in both halves, the clock left out."""
    found = {}
    for half in HALVES:
        records = [{k: v for k, v in r.items() if k != "seconds"} for r in records_of(out / half)]
        found[half] = records, (out / half / "model.safetensors").read_bytes()
    return found


def data_of_page(out):
    assert (out / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    page = (out / "report.html").read_text()
    return json.loads(re.search(r'<script id="data"[^>]*>(.*?)</script>', page, re.DOTALL)[1])


def test_both_runs_have_the_same_beginning_and_only_one_has_the_index(whole):
    out, _, loads = whole
    original, improved = (saved_config(out / half / "config.toml") for half in HALVES)
    assert (original.improve, improved.improve) == ((), ("sampling", "aggregation", "local"))
    different = {n for n, v in dataclasses.asdict(original).items() if v != getattr(improved, n)}
    assert {"improve", "index"} <= different
    assert all("improve" in FIELDS[name].needs for name in different - {"improve"})
    first = [records_of(out / half)[0] for half in HALVES]
    assert first[0]["cohort"] == first[1]["cohort"]
    assert [r["cohort"] for r in records_of(out / "original")] != [
        r["cohort"] for r in records_of(out / "client2vec")
    ]
    assert not (out / "original" / "index.safetensors").exists()
    assert (out / "client2vec" / "index.safetensors").exists()
    assert loads == 1
    assert outcome(out) == outcome(out.with_name("again"))


def test_a_half_is_the_run_that_the_command_makes_alone(whole, tmp_path):
    alone = SMALL[: SMALL.index("--index")]
    assert run.main([*alone, *PLAIN, "--out", str(tmp_path / "original")]) == 0
    assert run.main([*SMALL, "--out", str(tmp_path / "client2vec")]) == 0
    assert outcome(tmp_path) == outcome(whole[0])


def test_one_table_is_shown_and_left_then_the_path_of_the_page(whole):
    out, done, _ = whole
    table = (out / "comparison.md").read_text()
    assert done.stdout.strip() == f"{table}\nreport: {out / 'report.html'}"
    assert "test accuracy" not in done.stdout  # the table of a single run
    about = json.loads((out / "comparison.json").read_text())
    assert "two runs by --beside-original" in about["what"]
    assert about["command"].startswith("python -m c2v_sim.run --beside-original --model linear")
    assert table.startswith("shapes, linear, fedavg, seed 0; the feature-average index (builtin")
    assert "Stand-in encoder" in table
    assert "builtin encoder in place of the paper's CLIP" in table
    assert not list(out.rglob("*.partial"))
    assert not list(out.rglob("in_use.lock"))


def cells(out):
    """The rows of comparison.md by name."""
    rows = [line.strip("|").split("|") for line in (out / "comparison.md").read_text().splitlines()]
    return {r[0].strip(): [cell.strip() for cell in r[1:]] for r in rows if len(r) == 4}


def expected(out):
    """The same, computed anew from the two runs' records."""
    a, b = (records_of(out / half) for half in HALVES)
    best = [max(r["accuracy"] for r in side) for side in (a, b)]
    tops = zip((a, b), best, strict=True)
    at = [next(r["round"] for r in side if r["accuracy"] == top) for side, top in tops]
    last = [side[-1]["accuracy"] for side in (a, b)]
    halves = ([r["accuracy"] for r in side[len(side) // 2 :]] for side in (a, b))
    late = [sum(half) / len(half) for half in halves]
    reached = next((r["round"] for r in b if r["accuracy"] >= best[0]), None)
    index = json.loads((out / "client2vec/manifest.json").read_text())["index"]["seconds"]
    spent = [sum(sum(r["seconds"].values()) for r in a[: at[0]])]
    if reached:
        spent.append(index + sum(sum(r["seconds"].values()) for r in b[:reached]))
    return {
        "best accuracy": [
            *(f"{100 * top:.2f} % (round {t})" for top, t in zip(best, at, strict=True)),
            f"{100 * (best[1] - best[0]):+.2f} points",
        ],
        "mean of the later half": [
            *(f"{100 * value:.2f} %" for value in late),
            f"{100 * (late[1] - late[0]):+.2f} points",
        ],
        "last accuracy": [
            *(f"{100 * value:.2f} %" for value in last),
            f"{100 * (last[1] - last[0]):+.2f} points",
        ],
        "making the index": ["–", f"{index:.1f} s", ""],
        "rounds to the original's best": [str(at[0]), str(reached or "not reached"), ""],
        "seconds to it, with the index": [
            f"{spent[0]:.1f} s",
            f"{spent[1]:.1f} s" if reached else "not reached",
            "",
        ],
    }


def with_accuracies(out, half, values):
    """Other accuracies for the rounds of a run."""
    lines = [
        json.dumps(record | {"accuracy": value}) + "\n"
        for record, value in zip(records_of(out / half), values, strict=False)
    ]
    (out / half / "rounds.jsonl").write_text("".join(lines))


@pytest.mark.parametrize(
    ("original", "improved", "reached"),
    [
        ([0.1, 0.5, 0.4, 0.4], [0.2, 0.4, 0.5, 0.7], "3"),
        ([0.1, 0.5, 0.4, 0.4], [0.2, 0.4, 0.49, 0.3], "not reached"),
        ([0.1, None, 0.5, 0.4], [0.5, None, 0.4, 0.4], "1"),
    ],
)
def test_the_table_says_what_the_records_say(whole, tmp_path, original, improved, reached):
    out = tmp_path / "pair"
    shutil.copytree(whole[0], out)
    for half, values in zip(HALVES, (original, improved), strict=True):
        with_accuracies(out, half, values)
    write_comparison(out)
    if None not in original:
        assert {n: c for n, c in cells(out).items() if n in expected(out)} == expected(out)
    assert cells(out)["rounds to the original's best"][1] == reached
    about = json.loads((out / "comparison.json").read_text())
    best = [max(v for v in values if v is not None) for values in (original, improved)]
    assert about["gain"]["best_accuracy"] == pytest.approx(best[1] - best[0])
    assert about["gain"]["last_accuracy"] == pytest.approx(improved[-1] - original[-1])
    later = [sum(values[2:]) / 2 for values in (original, improved)]  # also where three of four are
    assert about["gain"]["late_accuracy"] == pytest.approx(later[1] - later[0])


def test_the_table_of_the_real_runs_is_of_their_records(whole):
    out = whole[0]
    assert {n: c for n, c in cells(out).items() if n in expected(out)} == expected(out)


def test_an_index_whose_time_nobody_knows_is_not_called_free(whole, tmp_path):
    out = tmp_path / "pair"
    shutil.copytree(whole[0], out)
    with_accuracies(out, "original", [0.1] * 8)
    with_accuracies(out, "client2vec", [0.1] * 8)
    file = out / "client2vec" / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["index"]["seconds"] = None
    file.write_text(json.dumps(manifest))
    write_comparison(out)
    assert cells(out)["making the index"][1] == "not recorded"
    assert cells(out)["seconds to it, with the index"][1] == "not recorded"
    assert cells(out)["rounds to the original's best"][1] == "1"


def test_the_page_shows_both_runs_their_cohorts_and_the_index(whole):
    page = data_of_page(whole[0])
    original, improved = page["runs"]
    assert [r["name"] for r in page["runs"]] == list(HALVES)
    assert [g["label"] for g in page["groups"]] == ["fedavg", "fedavg + Client2Vec"]
    assert all(len(g["curves"]["accuracy"]["round"]) == 8 for g in page["groups"])
    assert all(run["cohorts"]["rounds"] == 8 for run in (original, improved))
    assert original["index"] is None
    assert page["pool"][improved["index"]]["maps"][0]["upper"]


# ---- stopped, and resumed -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("half", "number", "code"),
    [("original", signal.SIGINT, 130), ("client2vec", signal.SIGTERM, 143)],
)
def test_a_signal_in_either_half_and_resume_gives_the_same_bits(
    whole, tmp_path, half, number, code, capsys
):
    out = tmp_path / "stopped"
    command = [sys.executable, "-P", "-m", "c2v_sim.run", "--beside-original", *SMALL]
    process = subprocess.Popen([*command, "--out", str(out)], stderr=subprocess.PIPE, text=True)
    begun = False
    for line in process.stderr:
        begun = begun or line.strip() == f"run directory: {out / half}"
        if begun and line.startswith("round 1/"):
            process.send_signal(number)
            break
    error = process.communicate(timeout=120)[1]
    if process.returncode == 0:
        pytest.skip("the runs were over before the signal came")
    assert process.returncode == code
    assert f"of {half}; go on with: python -m c2v_sim.run --resume {out}" in error
    assert "Traceback" not in error
    assert not (out / "comparison.md").exists()
    before = {p: p.stat().st_mtime_ns for p in (out / "original").iterdir()}
    assert run.main(["--resume", str(out), "--lanes", "1"]) == 0
    shown = capsys.readouterr()
    assert outcome(out) == outcome(whole[0])
    assert [r["name"] for r in data_of_page(out)["runs"]] == list(HALVES)
    assert f"report: {out / 'report.html'}" in shown.out
    if half == "client2vec":  # the finished half was left alone
        assert {p: p.stat().st_mtime_ns for p in (out / "original").iterdir()} == before
        assert f"run directory: {out / 'original'}" not in shown.err


def test_both_go_on_for_more_rounds(whole, tmp_path):
    out = tmp_path / "pair"
    shutil.copytree(whole[0], out)
    assert run.main(["--resume", str(out), "--rounds", "9"]) == 0
    assert [len(records_of(out / half)) for half in HALVES] == [9, 9]
    assert all(run["cohorts"]["rounds"] == 9 for run in data_of_page(out)["runs"])


def test_a_half_can_be_resumed_by_itself(whole, tmp_path, capsys):
    out = tmp_path / "pair"
    shutil.copytree(whole[0], out)
    for name in RESULTS:
        (out / "client2vec" / name).unlink()
    shutil.rmtree(out / "client2vec" / "checkpoints")
    assert run.main(["--resume", str(out / "client2vec")]) == 0
    assert outcome(out) == outcome(whole[0])


def test_a_signal_between_the_halves_is_not_lost(whole, tmp_path, monkeypatch, capsys):
    """It comes when the first one has nothing left to stop."""
    finish, out = train.finish, tmp_path / "between"

    def then_a_signal(*arguments):
        signal.raise_signal(signal.SIGINT)
        return finish(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(train, "finish", then_a_signal)
        assert run.main(["--beside-original", *SMALL, "--out", str(out)]) == 130
    assert f"interrupted; go on with: python -m c2v_sim.run --resume {out}" in (
        capsys.readouterr().err
    )
    assert not (out / "client2vec" / "rounds.jsonl").exists()
    assert run.main(["--resume", str(out)]) == 0
    assert outcome(out) == outcome(whole[0])


def test_a_pair_that_another_process_works_in_is_left_alone(whole, tmp_path, capsys):
    from c2v_sim.system.files import in_use

    out = tmp_path / "pair"
    shutil.copytree(whole[0], out)
    with in_use(out):
        assert run.main(["--resume", str(out)]) == 2
    assert "another process works in this directory" in capsys.readouterr().err


def test_without_the_packages_of_a_report_the_table_is_there_and_the_way_to_the_page(
    whole, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "pair"
    shutil.copytree(whole[0], out)
    (out / "report.html").unlink()
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert run.main(["--resume", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "| best accuracy" in shown
    assert "no report page: a report needs the package vl_convert: pip install" in shown
    assert f"then: python -m c2v_sim.run --resume {out}" in shown


# ---- refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*PLAIN], "improve is none: leave one of them out"),
        (["--improve", "local", "--tau", "0.5"], "tau = 0.5 has no effect with improve = local"),
        (["--batch-size", "0"], "batch_size must be at least 1, got 0"),
        (["--config", "absent.toml"], "cannot read the configuration absent.toml"),
        (["--index-file", "absent.safetensors"], "absent.safetensors"),
        (["--pretrained", "absent.pth"], "absent.pth"),
        (["--clients", "500"], "clients"),
        (["--resume", "absent"], "no run directory"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    arguments, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    sizes = ["--train-size", "400", "--test-size", "100", "--clients", "8"]
    sizes = [] if "--resume" in arguments else sizes
    assert run.main(["--beside-original", *sizes, *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_what_exists_is_not_overwritten_and_other_settings_are_refused(whole, capsys):
    out = whole[0]
    before = outcome(out)
    assert run.main(["--beside-original", *SMALL, "--out", str(out)]) == 2
    assert "exists and is never overwritten" in capsys.readouterr().err
    assert run.main(["--resume", str(out), "--lr", "0.5"]) == 2
    assert "lr (was 0.005, now 0.5)" in capsys.readouterr().err
    assert run.main(["--resume", str(out / "original"), "--beside-original"]) == 2
    assert "this run has no original beside it" in capsys.readouterr().err
    assert outcome(out) == before


def test_a_stand_in_is_named_in_table_and_page(tmp_path, monkeypatch, capsys):
    from c2v_sim.data.sources import cifar10, shapes
    from c2v_sim.system.errors import Unreachable

    def unreachable(*_, **__):
        raise Unreachable("no network in this test")

    monkeypatch.setattr(cifar10, "fetch", unreachable)
    monkeypatch.setattr(shapes, "TRAIN_SIZE", 400)
    monkeypatch.setattr(shapes, "TEST_SIZE", 100)
    sizes = SMALL.index("--train-size")
    small = [*SMALL[:sizes], *SMALL[sizes + 4 :], "--rounds", "1"]
    out = tmp_path / "standin"
    flags = ["--beside-original", "--dataset", "cifar10", *small, "--out", str(out)]
    assert run.main([*flags, "--require-real-data"]) == 2
    assert not out.exists()
    assert run.main(flags) == 0
    table = capsys.readouterr().out
    assert "cifar10-standin(shapes), linear, fedavg" in table
    assert "trained on cifar10-standin(shapes), not on cifar10" in table
    assert any("not on cifar10" in banner for banner in data_of_page(out)["banners"])
    assert "cifar10-standin(shapes)" in (out / "comparison.json").read_text()
