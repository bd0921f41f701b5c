"""Tables of sweeps: real tiny runs, and run directories made up in their image."""

import csv
import io
import json
import shutil
import tomllib

import pytest

from c2v_sim.config import to_toml
from c2v_sim.index.client_index import ClientIndex
from c2v_sim.run import __main__ as run
from c2v_sim.run.files import parse_rounds, to_line
from c2v_sim.sweep.file import cell_folder, make_sweep, read_sweep
from c2v_sim.sweep.tables.write import write_tables
from c2v_sim.tables import main

BASE = """
title = "Tiny"
about = "A trial."
[base]
dataset = "shapes"
train_size = 300
test_size = 120
partition = "by-domain"
clients_per_domain = 2
participation = 0.5
model = "linear"
rounds = 3
local_epochs = 1
batch_size = 32
index_epochs = 1
index_dropout = 0.0
"""
MAIN = """
[axes]
algorithm = ["fedavg", "moon"]
seed = [0, 1, 2]
[axes.case]
original = {}
glob_i = { improve = ["sampling"] }
[table]
paper = "main_table.domainnet_mobilenetv2"
reference = "paper/main-domainnet"
rows = ["algorithm"]
columns = "case"
"""
TIME = """
[axes]
seed = [0, 1]
[axes.method]
client2vec = { improve = ["sampling", "aggregation", "local"] }
fedavg = {}
[table]
kind = "time"
paper = "simulation_time_s"
reference = "paper/simulation-time"
rows = ["method"]
"""
INDEX = """
[axes]
seed = [0]
[axes.diversity]
with = { improve = ["sampling"] }
[table]
kind = "index"
reference = "paper/diversity"
rows = ["diversity"]
"""


def sweep_of(text):
    return make_sweep(tomllib.loads(text), text, {})


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """The sweep's directory after two of its cells have really run, by name of the cell."""
    root = tmp_path_factory.mktemp("real")
    sweep = sweep_of(BASE + MAIN)
    wanted = ("fedavg-0-original", "fedavg-0-glob_i")
    for cell in sweep.cells:
        if cell.name in wanted:
            settings = root / f"{cell.name}.toml"
            settings.write_text(to_toml(cell.config))
            flags = ["--data-dir", str(root / "data"), "--out", str(cell_folder(root, cell))]
            assert run.main(["--config", str(settings), *flags]) == 0
    return root


def make_up(real, out, cell, best, *, seconds=(), accuracies=(), **changed):
    """A run directory as if `cell` had run: like a real one, with other numbers."""
    model = "fedavg-0-glob_i" if cell.config.improve else "fedavg-0-original"
    folder = cell_folder(out, cell)
    shutil.copytree(real / "cells" / model, folder)
    (folder / "config.toml").write_text(to_toml(cell.config))
    change(folder / "result.json", best_accuracy=best)
    change(folder / "manifest.json", seed=cell.config.seed, **changed)
    if seconds:
        records = parse_rounds((folder / "rounds.jsonl").read_bytes().splitlines())
        lines = []
        for record, took, accuracy in zip(records, seconds, accuracies, strict=True):
            object.__setattr__(record, "seconds", {"train": took - 1.0, "evaluate": 1.0})
            object.__setattr__(record, "accuracy", accuracy)
            lines.append(to_line(record))
        (folder / "rounds.jsonl").write_bytes(b"".join(lines))
    return folder


def change(path, **values):
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def cell(sweep, name):
    return next(c for c in sweep.cells if c.name == name)


def fill(real, out, sweep, accuracies, **changed):
    for name, percent in accuracies.items():
        make_up(real, out, cell(sweep, name), percent / 100, **changed)


def written(out):
    """table.json and table.csv."""
    table = list(csv.DictReader(io.StringIO((out / "table.csv").read_text())))
    return json.loads((out / "table.json").read_text()), table


def line(markdown, *start):
    """The cells of the table's line that begins with `start`."""
    lines = [[c.strip() for c in text.strip("|").split("|")] for text in markdown.splitlines()]
    (found,) = [cells for cells in lines if cells[: len(start)] == list(start)]
    return found[len(start) :]


@pytest.fixture
def numbers(real, tmp_path):
    """FedAvg complete; of MOON one seed failed, one is unfinished, and one column did not run."""
    sweep = sweep_of(BASE + MAIN)
    done = {"fedavg-0-original": 40, "fedavg-1-original": 42, "fedavg-2-original": 44}
    done |= {"fedavg-0-glob_i": 45, "fedavg-1-glob_i": 46, "fedavg-2-glob_i": 50}
    done |= {"moon-0-original": 60, "moon-1-original": 61, "moon-2-original": 62}
    fill(real, tmp_path, sweep, done)
    said = ["round 1/3", "c2v_sim: error: round 2, client 0: not finite. Go on with: python"]
    failure = {"command": "python", "exit_code": 1, "log": said}
    (tmp_path / "cells" / "moon-1-original.failed").write_text(json.dumps(failure))
    (tmp_path / "cells" / "moon-2-original" / "result.json").unlink()
    return sweep, tmp_path


def test_a_table_shows_mean_std_paper_difference_and_gain(numbers):
    markdown = write_tables(*numbers)
    assert line(markdown, "fedavg", "here") == ["42.00 ± 1.63", "47.00 ± 2.16"]
    assert line(markdown, "fedavg", "paper") == ["46.31 ± 1.36", "52.37 ± 0.59"]
    assert line(markdown, "fedavg", "difference") == ["−4.31", "−5.37"]
    assert line(markdown, "fedavg", "gain here") == ["", "+5.00 ± 0.82"]  # 5, 4 and 6
    assert line(markdown, "fedavg", "gain, paper") == ["", "+6.06"]
    assert (numbers[1] / "table.md").read_text() == markdown


def test_the_later_half_of_the_evaluations_stands_beside_the_best(real, tmp_path):
    sweep = sweep_of(BASE + MAIN)
    curves = {"fedavg-0-original": (0.1, 0.5, 0.3), "fedavg-1-original": (0.2, None, 0.4)}
    curves |= {"fedavg-0-glob_i": (0.1, 0.45, 0.45), "moon-0-original": (0.9, 0.2, 0.4)}
    for name, values in curves.items():
        best = max(v for v in values if v)
        made_up = cell(sweep, name)
        make_up(real, tmp_path, made_up, best, seconds=(2.0, 2.0, 2.0), accuracies=values)
    markdown = write_tables(sweep, tmp_path)
    both = "40.00 ± 0.00 (2 of 3 seeds)"  # 0.5 and 0.3 of seed 0; 0.4 of seed 1
    assert line(markdown, "fedavg", "later half") == [both, "45.00 (1 of 3 seeds)"]
    assert line(markdown, "fedavg", "gain, later half") == ["", "+5.00 (1 of 3 seeds)"]
    assert line(markdown, "moon", "later half") == ["30.00 (1 of 3 seeds)", ""]
    place = written(tmp_path)[0]["places"][1]
    assert (place["late"], place["late_gain"]) == pytest.approx((45.0, 5.0))


def test_cells_without_a_result_are_shown_as_such(numbers):
    markdown = write_tables(*numbers)
    original, steered = line(markdown, "moon", "here")
    assert original == "60.00 (1 of 3 seeds; 1 failed, 1 unfinished)"
    assert steered == "not run"
    assert line(markdown, "moon", "difference") == ["+9.44", ""]
    assert "- 7 of 12 cells are done." in markdown
    assert "- moon-1-original failed: round 2, client 0: not finite." in markdown


def test_csv_json_and_markdown_agree(numbers):
    markdown = write_tables(*numbers)
    facts, table = written(numbers[1])
    places = facts["places"]
    assert [(p["row"]["algorithm"], p["column"]) for p in places] == [
        (t["algorithm"], t["column"]) for t in table
    ]
    shown = line(markdown, "fedavg", "here") + line(markdown, "moon", "here")
    for place, row, text in zip(places, table, shown, strict=True):
        for name in ("mean", "std", "paper_mean", "paper_std", "difference", "gain", "paper_gain"):
            assert row[name] == ("" if place[name] is None else str(place[name]))
        if place["mean"] is not None:
            assert text.startswith(f"{place['mean']:.2f}")
    assert places[1]["values"] == pytest.approx({"0": 45.0, "1": 46.0, "2": 50.0})
    assert table[2]["missing"] == "1=failed; 2=unfinished"
    assert places[2]["std"] is None  # one seed has none
    assert places[0]["difference"] == pytest.approx(42.0 - 46.31)
    assert facts["deviates"]
    assert all(note.lstrip("- ") in markdown for note in facts["notes"])


def test_what_deviates_is_said_and_nothing_else(numbers):
    markdown = write_tables(*numbers)
    below = [text for text in markdown.splitlines() if text.startswith("- ")]
    assert below[0] == "- **Small-scale run: not a reproduction of the paper.**"
    assert below[1:5] == [
        "- The data is shapes, not DomainNet.",
        "- The encoder of the index is builtin, not CLIP ViT-B/32.",
        "- The network is linear from scratch, not mobilenetv2 with pre-trained weights.",
        "- Other settings than the paper's: clients 2 per domain (paper: 10 per domain); rounds 3 "
        "(paper: 100); participation 0.5 (paper: 0.1); local epochs 1 (paper: 5); batch size 32 "
        "(paper: 128); momentum 0 (paper: 0.9); index epochs 1 (paper: 500); index dropout 0 "
        "(paper: 0.1).",
    ]
    assert "best over rounds" in markdown
    assert "The paper reports the best over rounds too" in markdown
    assert "case fed_i, fed_i_ii, fed_i_ii_iii" in below[5]
    original, steered = written(numbers[1])[0]["places"][:2]
    assert "rounds 3 (paper: 100)" in original["deviations"]
    assert not any("index" in text or "encoder" in text for text in original["deviations"])
    assert "encoder builtin (paper: CLIP ViT-B/32)" in steered["deviations"]


def test_real_runs_give_their_own_numbers(real):
    sweep = sweep_of(BASE + MAIN)
    markdown = write_tables(sweep, real)
    facts, _ = written(real)
    for place, name in zip(facts["places"], ("original", "glob_i"), strict=False):
        result = json.loads((real / "cells" / f"fedavg-0-{name}" / "result.json").read_text())
        assert place["values"] == {"0": 100 * result["best_accuracy"]}
    assert "(1 of 3 seeds; 2 not run)" in line(markdown, "fedavg", "here")[0]
    assert "- Data: shapes, 300 training and 120 test samples, rendered by c2v_sim" in markdown
    manifest = json.loads((real / "cells/fedavg-0-original/manifest.json").read_text())
    assert f"torch {manifest['versions']['torch']}" in markdown
    assert manifest["machine"]["cpu"] in markdown


def paper_scale(real, out, encoder, data, standin=None):
    """One seed of paper/main-cifar10 made up, as if it had run on `data` with `encoder`."""
    sweep = read_sweep("paper/main-cifar10")
    facts = json.loads((real / "cells/fedavg-0-glob_i/manifest.json").read_text())["data"]
    facts |= {"name": data, "stand_in_for": standin}
    for name in ("fedavg-0-original", "fedavg-0-glob_i"):
        own = {"encoder": encoder} if name.endswith("glob_i") else {}
        make_up(real, out, cell(sweep, name), 0.5, data=facts, **own)
    return write_tables(sweep, out)


def test_the_papers_scale_with_a_stand_in_is_no_reproduction(real, tmp_path):
    markdown = paper_scale(real, tmp_path, "builtin", "cifar10-standin(shapes)", "cifar10")
    assert markdown.count("**Run with substitutes: not a reproduction of the paper.**") == 2
    assert "The data is cifar10-standin(shapes), not CIFAR10." in markdown
    assert (
        "cifar10-standin(shapes) is a stand-in: its numbers say nothing about CIFAR10." in markdown
    )
    assert "The encoder of the index is builtin, not CLIP ViT-B/32." in markdown
    assert "Other settings" not in markdown


def test_the_papers_scale_with_the_papers_means_deviates_in_nothing(real, tmp_path):
    markdown = paper_scale(real, tmp_path, "clip ViT-B-32/openai", "cifar10")
    assert "**" not in markdown
    assert "Nothing that was compared deviates" in markdown
    facts, table = written(tmp_path)
    assert not facts["deviates"]
    assert {row["deviations"] for row in table} == {""}


def test_a_network_without_its_weights_is_said(real, tmp_path):
    sweep = read_sweep("paper/simulation-time")
    make_up(real, tmp_path, cell(sweep, "0-fedavg"), 0.5)
    markdown = write_tables(sweep, tmp_path)
    words = "The network is mobilenetv2 from scratch, not mobilenetv2 with pre-trained weights."
    assert words in markdown


def test_a_changed_setting_makes_it_a_small_run(real, tmp_path):
    sweep = read_sweep("paper/main-cifar10", {"rounds": 10})
    markdown = write_tables(sweep, tmp_path)
    assert "Other settings than the paper's: rounds 10 (paper: 100)." in markdown
    assert "**Small-scale run: not a reproduction of the paper.**" in markdown
    assert "No cell has run." in markdown


def test_time_to_the_baselines_best(real, tmp_path):
    sweep = sweep_of(BASE + TIME)
    index = json.loads((real / "cells/fedavg-0-glob_i/manifest.json").read_text())["index"]
    steered, plain = {"index": index | {"seconds": 30.0}}, {}
    # seed 0: FedAvg's best is 0.5 in its second round; the other reaches it in its third.
    runs = {
        "0-fedavg": (0.5, (10.0, 20.0, 40.0), (0.3, 0.5, 0.4), plain),
        "0-client2vec": (0.6, (5.0, 6.0, 7.0), (0.4, None, 0.6), steered),
        "1-fedavg": (0.7, (10.0, 10.0, 10.0), (0.3, 0.5, 0.7), plain),
        "1-client2vec": (0.6, (5.0, 5.0, 5.0), (0.4, 0.5, 0.6), steered),
    }
    for name, (best, seconds, accuracies, changed) in runs.items():
        make_up(
            real,
            tmp_path,
            cell(sweep, name),
            best,
            seconds=seconds,
            accuracies=accuracies,
            **changed,
        )
    markdown = write_tables(sweep, tmp_path)
    assert line(markdown, "fedavg", "here") == [
        "0.0 ± 0.0",
        "50.0 ± 20.0",  # 70 and 30
        "30.0 ± 0.0",
        "30.0 ± 0.0",
    ]
    assert line(markdown, "client2vec", "here") == [
        "30.0 ± 0.0",
        "16.5 ± 1.5",
        "18.0 (1 of 2 seeds; 1 never)",
        "48.0 (1 of 2 seeds; 1 never)",
    ]
    # 70 + 30 s without an index, 18 + 15 s with one, which is the same for both seeds here
    assert "133.0 s in the rounds of 4 runs, 30.0 s for 1 client index (each once" in markdown
    assert line(markdown, "client2vec", "paper") == ["632.0", "24583.0", "10817.0", "11449.0"]


def test_an_index_without_its_seconds_and_a_baseline_without_result(real, tmp_path):
    sweep = sweep_of(BASE + TIME)
    folder = make_up(real, tmp_path, cell(sweep, "0-client2vec"), 0.6)
    facts = json.loads((folder / "manifest.json").read_text())
    facts["index"].pop("seconds", None)
    (folder / "manifest.json").write_text(json.dumps(facts))
    here = line(write_tables(sweep, tmp_path), "client2vec", "here")
    assert here[0] == "not recorded, not run"
    assert here[2] == "baseline not run, not run"


def test_the_quality_of_the_index_is_that_of_the_file(real, tmp_path):
    sweep = sweep_of(BASE + INDEX)
    folder = make_up(real, tmp_path, cell(sweep, "0-with"), 0.25)
    quality = ClientIndex.load(folder / "index.safetensors").quality
    markdown = write_tables(sweep, tmp_path)
    here = line(markdown, "with", "here")
    assert here[0] == f"{quality['within']:.3f}".replace("-", "−")
    assert here[1] == f"{quality['between']:.3f}".replace("-", "−")
    assert here[2] == f"{quality['silhouette']:.3f}".replace("-", "−")
    assert here[4] == "25.00"
    places = written(tmp_path)[0]["places"]
    assert places[0]["values"] == {"0": quality["within"]}
    change(folder / "manifest.json", index={"quality": {}})
    assert line(write_tables(sweep, tmp_path), "with", "here")[0] == "not defined"


def test_a_table_of_indices_may_name_one_of_the_papers(real, tmp_path):
    sweep = sweep_of(BASE + INDEX.replace("kind =", 'paper = "tau_table"\nkind ='))
    assert "best over rounds in %" in write_tables(sweep, tmp_path)


def test_cells_of_several_commits_are_told_apart(real, tmp_path):
    sweep = sweep_of(BASE + MAIN)
    make_up(real, tmp_path, cell(sweep, "fedavg-0-original"), 0.4, commit="a" * 40)
    make_up(real, tmp_path, cell(sweep, "fedavg-1-original"), 0.4, commit="b" * 40)
    markdown = write_tables(sweep, tmp_path)
    assert f"differ in their commit: {'a' * 40} (1 cells); {'b' * 40} (1 cells)." in markdown
    assert "differ in their machine" not in markdown


def test_skipped_cells_have_a_dash(real, tmp_path):
    skip = '[[skip]]\nalgorithm = "moon"\ncase = "glob_i"\n'
    sweep = sweep_of(BASE + skip + MAIN)
    fill(real, tmp_path, sweep, {"moon-0-original": 60})
    assert line(write_tables(sweep, tmp_path), "moon", "here")[1] == "–"


def test_a_sweep_without_a_table_gets_a_row_for_every_choice(real, tmp_path):
    sweep = sweep_of(BASE + MAIN.split("[table]")[0])
    fill(real, tmp_path, sweep, {"moon-0-glob_i": 60, "moon-1-glob_i": 62})
    markdown = write_tables(sweep, tmp_path)
    assert line(markdown, "moon", "glob_i", "here") == ["61.00 ± 1.00 (2 of 3 seeds; 1 not run)"]
    assert "names no reference" in markdown


def test_the_command(numbers, tmp_path, capsys):
    sweep, out = numbers
    assert main([str(out)]) == 2
    assert "no sweep.toml" in capsys.readouterr().err
    (out / "sweep.toml").write_text(sweep.text)
    assert main([str(out)]) == 0
    assert capsys.readouterr().out == (out / "table.md").read_text()
    damaged = out / "cells" / "fedavg-0-original" / "result.json"
    damaged.write_text("{")
    assert main([str(out)]) == 2
    assert str(damaged) in capsys.readouterr().err
