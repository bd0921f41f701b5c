"""rounds.csv says what rounds.jsonl says: at a checkpoint, after a resume, on a full disk."""

import csv
import json

import pytest

from c2v_sim.run import __main__ as run
from c2v_sim.run.files import to_csv
from c2v_sim.simulator.records import RoundRecord

TINY = "--model linear --train-size 240 --test-size 120 --partition by-domain --rounds 5"
TINY += " --clients-per-domain 2 --participation 0.25 --local-epochs 1 --checkpoint-every 2"
TINY += " --improve none"


@pytest.fixture(autouse=True)
def data_dir(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("C2V_DATA", str(tmp_path_factory.getbasetemp() / "data"))


def rows_of(folder):
    with (folder / "rounds.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def records_of(folder):
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def number(text):
    return float(text) if text else None


def check_same(folder):
    """Field by field, by the names of the columns alone."""
    rows, records = rows_of(folder), records_of(folder)
    assert len(rows) == len(records)
    domains = ("flat", "outline", "neon", "textured", "foggy", "mosaic")
    for row, record in zip(rows, records, strict=True):
        assert (row["dataset"], int(row["round"])) == (record["dataset"], record["round"])
        for name in ("train_loss", *(f"accuracy{s}" for s in ("", "_weighted", "_worst10"))):
            assert number(row[name]) == record[name]
        wanted = record["accuracy_domains"] or [None] * 6
        assert [number(row[f"accuracy_domain_{d}"]) for d in domains] == wanted
        assert [int(i) for i in row["cohort"].split()] == record["cohort"]
        assert [float(w) for w in row["weights"].split()] == record["weights"]
        for stage, seconds in record["seconds"].items():
            assert float(row[f"seconds_{stage}"]) == seconds


def test_every_round_is_a_row_and_what_was_not_evaluated_is_empty(tmp_path):
    out = tmp_path / "run"
    assert run.main([*TINY.split(), "--eval-every", "2", "--out", str(out)]) == 0
    check_same(out)
    assert [row["accuracy"] == "" for row in rows_of(out)] == [True, False, True, False, False]


def test_a_resume_drops_the_rows_that_it_trains_again(tmp_path, monkeypatch):
    out, trained = tmp_path / "run", run.Journal.round_done

    def stop_after_three(self, record):
        trained(self, record)
        if record.round == 3:
            # A kill: what is in the table now is of round 2, in rounds.jsonl of round 3.
            assert [row["round"] for row in rows_of(out)] == ["1", "2"]
            raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(run.Journal, "round_done", stop_after_three)
        with pytest.raises(SystemExit):
            run.main([*TINY.split(), "--out", str(out)])
    (out / "rounds.csv").write_text("of something else\n")
    assert run.main(["--resume", str(out)]) == 0
    assert len(rows_of(out)) == 5
    check_same(out)


def test_a_table_that_cannot_be_written_is_made_good_by_a_resume(tmp_path, monkeypatch, capsys):
    def full(path, text):
        raise OSError(28, "No space left on device", str(path))

    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("c2v_sim.run.journal.run_directory.write_text", full)
        assert run.main([*TINY.split(), "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert error.count("warning: cannot write") == 1
    last = error.splitlines()[-1]
    assert last.startswith("c2v_sim: error: training is done, but")
    assert "Not saved: rounds.csv" in last
    assert not (out / "rounds.csv").exists()
    assert not (out / "result.json").exists()  # which would say that nothing is missing
    assert {p.name for p in (out / "checkpoints").iterdir()} == {"000004", "000005"}
    assert run.main(["--resume", str(out)]) == 0
    check_same(out)


def test_a_name_with_a_comma_or_a_quote_stays_one_field():
    record = RoundRecord(
        'my "own", data', 1, [3, 5], [0.25, 0.75], 0.1, None, None, None, None, None,
        {"sample": 0.0, "train": 1.5, "aggregate": 0.0, "evaluate": 0.0},
        scores=[0.5] * 9, history=[0.5] * 9,
    )  # fmt: skip
    names, values = csv.reader(to_csv([record], ["a, b"]).splitlines())
    row = dict(zip(names, values, strict=True))
    assert row["dataset"] == 'my "own", data'
    assert row["accuracy_domain_a, b"] == row["accuracy"] == ""
    assert (row["cohort"], row["weights"]) == ("3 5", "0.25 0.75")
    assert not {"scores", "history"} & row.keys()
