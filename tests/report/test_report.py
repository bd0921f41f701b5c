"""The report command: from real run directories to the data of a page."""

import builtins
import itertools
import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from report_directories import NO_INDEX, NOT_FINITE, embedded, unpack, write_many, write_run

pytest.importorskip("altair", reason="pip install 'c2v_sim[report]'")
pytest.importorskip("vl_convert", reason="pip install 'c2v_sim[report]'")

from c2v_sim.config import RunConfig
from c2v_sim.index.client_index import ClientIndex
from c2v_sim.report import __main__ as report
from c2v_sim.report.clients import order_clients, pack
from c2v_sim.report.groups import group_runs
from c2v_sim.report.index import block_cosines, means_of
from c2v_sim.report.page_data import curve, document
from c2v_sim.report.rounds import UNTESTED
from c2v_sim.report.runs import find_runs, read_runs
from c2v_sim.run.reader import read_run

# ---- reading --------------------------------------------------------------------------------


def test_runs_that_differ_in_the_seed_alone_are_one_experiment(report_runs):
    groups = group_runs(*read_runs(find_runs([report_runs])))
    members = {group.label: [r.name for r in group.runs] for group in groups}
    assert members == {
        "fedavg; dirichlet; mlp; rounds 3; participation 0.25": ["mlp"],
        "fedavg; by-domain; linear; rounds 4; participation 0.4": ["plain-0", "plain-1", "stopped"],
        "fedavg + Client2Vec; by-domain; linear; rounds 4; participation 0.4": [
            "steered-0",
            "steered-1",
        ],
    }


def test_another_kind_of_index_is_another_experiment_named_once(report_runs, tmp_path):
    for kind in ("feature-average", "local-model-weights"):
        path = tmp_path / kind
        shutil.copytree(report_runs / "steered-0", path)
        config = (path / "config.toml").read_text()
        (path / "config.toml").write_text(config.replace("dsa-ign", kind))
        manifest = json.loads((path / "manifest.json").read_text())
        manifest["index"]["settings"]["index"] = kind
        if kind == "local-model-weights":  # made in training, by no settings of its own
            manifest |= {"index": None, "encoder": None}
            (path / "index.safetensors").unlink()
        (path / "manifest.json").write_text(json.dumps(manifest))
    runs, _ = read_runs(find_runs([report_runs / "steered-0", report_runs / "plain-0", tmp_path]))
    assert [group.label for group in group_runs(runs)] == [
        "fedavg",
        "fedavg + Client2Vec; index dsa-ign",
        "fedavg + Client2Vec; index feature-average",
        "fedavg + Client2Vec; index local-model-weights",
    ]


def test_curves_are_mean_and_range_over_the_seeds_that_got_there(report_runs):
    three, _ = read_runs([report_runs / name for name in ("plain-0", "plain-1", "stopped")])
    values = np.array([[100 * r.accuracy for r in one.evaluated] for one in three[:2]])
    made = curve(three, "accuracy")
    assert made["round"] == [1, 2, 3, 4]
    assert made["runs"] == [3, 3, 2, 2]
    assert made["mean"][2:] == pytest.approx(values.mean(0)[2:], abs=0.006)
    assert made["low"] == pytest.approx(values.min(0), abs=0.006)
    assert made["high"] == pytest.approx(values.max(0), abs=0.006)


def test_the_clients_of_a_run_are_kept_with_it(report_runs):
    one = read_run(report_runs / "plain-0")
    counts = one.clients.label_counts
    assert counts.shape == (12, 10)
    assert counts.sum() == 600
    assert one.clients.test_sizes.sum() == 200
    assert one.clients.domains.tolist() == [d for d in range(6) for _ in range(2)]
    older = read_run(report_runs / "stopped").clients  # sizes are in the partition
    assert older.label_counts is None
    for name in ("sizes", "test_sizes", "domains"):
        assert np.array_equal(getattr(older, name), getattr(one.clients, name)), name
    assert read_run(report_runs / "mlp").clients.domains is None


def test_an_unfinished_run_is_shown_with_what_it_has(report_runs, report_of_many):
    data = embedded(report_of_many)
    (shown,) = (r for r in data["runs"] if r["name"] == "stopped")
    assert "2 of 4, unfinished" in shown["facts"]
    assert shown["accuracy"] is None
    assert shown["cohorts"]["rounds"] == 2
    assert data["pool"][shown["clients"]]["counts"] is None
    assert "known once a run is finished" in shown["missing"]
    (row,) = (row for row in data["every_run"]["rows"] if row[0] == "stopped")
    assert row[1] == "unfinished"
    assert row[6] == "2 of 4"


def test_a_run_without_a_round_yet(report_runs, tmp_path):
    begun = tmp_path / "begun"
    shutil.copytree(report_runs / "plain-0", begun)
    for name in ("rounds.jsonl", "result.json"):
        (begun / name).unlink()
    data = embedded(report.make_report([begun]))
    assert data["runs"][0]["cohorts"] is None
    assert "No round is finished yet" in data["runs"][0]["missing"]
    assert data["summary"]["rows"][0][1:3] == ["–", "–"]


# ---- cells of a sweep that failed -----------------------------------------------------------


def test_failed_cells_are_listed_with_their_reason_begun_or_not(failed_cells, tmp_path):
    data = embedded(report.make_report([failed_cells], tmp_path / "report.html"))
    assert data["banners"][0].startswith("4 of 10 runs failed")
    assert "1 of 10 runs is not finished" in data["banners"][0]
    states = {row[0]: row[1] for row in data["every_run"]["rows"]}
    assert len(states) == 10
    assert states["plain-3"] == f"failed: {NOT_FINITE}"
    assert states["plain-4"] == "failed before it began: exit code 9"  # it said nothing
    assert states["steered-2"] == f"failed before it began: {NO_INDEX}"
    assert states["stopped"] == "unfinished"
    assert states["plain-0"] == "done"
    shown = {run["name"]: run for run in data["runs"]}
    assert shown.keys() == states.keys() - {"plain-4", "steered-2", "feddyn-0"}
    assert shown["plain-3"]["failure"] == NOT_FINITE
    assert "2 of 4, failed" in shown["plain-3"]["facts"]
    assert shown["plain-0"]["failure"] == ""


def test_means_are_of_the_finished_seeds_and_say_how_many(failed_cells, tmp_path):
    data = embedded(report.make_report([failed_cells], tmp_path / "report.html"))
    head = data["summary"]["head"]
    rows = [dict(zip(head, row, strict=True)) for row in data["summary"]["rows"]]
    plain, steered, feddyn = (
        next(row for row in rows if row["experiment"].startswith(start))
        for start in ("fedavg; by-domain", "fedavg + Client2Vec", "feddyn")
    )
    finished = [read_run(failed_cells / name) for name in ("plain-0", "plain-1")]
    best = [max(100 * r.accuracy for r in one.evaluated) for one in finished]
    assert plain["best"] == f"{np.mean(best):.1f} ± {np.std(best):.1f} % (2 of 5 seeds)"
    assert plain["seed(s)"] == "0, 1; unfinished: 2; failed: 3, 4"
    assert plain["seconds per run"] == f"{np.mean([one.cost.total for one in finished]):.1f}"
    assert steered["best"].endswith(" % (2 of 3 seeds)")
    assert steered["seed(s)"] == "0, 1; failed: 2"  # one experiment, though it has no index
    assert (feddyn["best"], feddyn["seed(s)"], feddyn["rounds"]) == ("–", "failed: 0", "–")
    assert len(data["groups"]) == 3  # an experiment that never began has no curve


def test_the_gain_over_the_original_is_taken_seed_by_seed(failed_cells, tmp_path):
    page = report.make_report([failed_cells], tmp_path / "report.html")
    data = embedded(page)
    head = data["summary"]["head"]
    rows = {row[0]: dict(zip(head, row, strict=True)) for row in data["summary"]["rows"]}
    best = {
        name: 100 * max(r.accuracy for r in read_run(failed_cells / name).evaluated)
        for name in ("plain-0", "plain-1", "steered-0", "steered-1")
    }
    each = [best[f"steered-{seed}"] - best[f"plain-{seed}"] for seed in (0, 1)]
    (steered,) = (row for name, row in rows.items() if name.startswith("fedavg + Client2Vec"))
    wanted = f"{np.mean(each):+.1f} ± {np.std(each):.1f}".replace("-", "−")
    assert steered["gain (points)"] == wanted
    others = [row["gain (points)"] for row in rows.values() if row is not steered]
    assert set(others) == {"–"}
    assert f"{wanted} points over fedavg" in data["gains"]
    assert "(mean of 2 seeds)" in data["gains"]


def test_one_run_has_no_gain_and_names_model_seed_and_improvements(report_runs, tmp_path):
    page = report.make_report([report_runs / "steered-1"], tmp_path / "report.html")
    data = embedded(page)
    run = read_run(report_runs / "steered-1")
    assert data["gains"] == ""
    assert "gain (points)" not in data["summary"]["head"]
    title = re.search("<title>(.*)</title>", page.read_text())[1]
    named = f"{run.manifest['data']['name']}, {run.config['model']}: fedavg + Client2Vec, seed 1"
    assert title == named
    assert data["groups"][0]["seconds"]["index"] == pytest.approx(run.cost.index or 0.0)


def test_numbers_without_a_finished_seed_are_so_far(failed_cells, tmp_path):
    page = report.make_report([failed_cells / "plain-3"], tmp_path / "report.html")
    data = embedded(page)
    assert data["banners"] == ["This run failed: its numbers are so far."]
    assert re.fullmatch(r"[\d.]+ % so far", data["summary"]["rows"][0][1])
    caption = data["runs"][0]["domains"]["caption"]
    assert "In round 2, the last one so far: best" in caption


def test_a_failed_cell_with_a_result_is_failed_as_in_the_tables(failed_cells, tmp_path):
    cells = tmp_path / "cells"
    shutil.copytree(failed_cells, cells)
    shutil.copy(cells / "plain-3.failed", cells / "plain-0.failed")
    data = embedded(report.make_report([cells], tmp_path / "report.html"))
    (row,) = (row for row in data["summary"]["rows"] if row[0].startswith("fedavg; by-domain"))
    assert row[4] == "1; unfinished: 2; failed: 0, 3, 4"  # after the gain
    assert "(1 of 5 seeds)" in row[1]


def test_cells_that_never_began_alone_make_no_report(failed_cells, tmp_path, capsys):
    out = tmp_path / "report.html"
    for name in ("steered-2.toml", "steered-2.failed"):
        shutil.copy(failed_cells / name, tmp_path / name)
    for path in (tmp_path, tmp_path / "steered-2"):
        assert report.main([str(path), "-o", str(out)]) == 2
        assert f"steered-2: {NO_INDEX}" in capsys.readouterr().err
    (tmp_path / "steered-2.failed").write_text("{")
    assert report.main([str(tmp_path), "-o", str(out)]) == 2
    assert "steered-2.failed is cut off or damaged" in capsys.readouterr().err
    (tmp_path / "steered-2.toml").unlink()  # then it is no cell of a sweep
    assert report.main([str(tmp_path), "-o", str(out)]) == 2
    assert f"{tmp_path} is not a run directory" in capsys.readouterr().err
    assert not out.exists()


# ---- what the page is given -----------------------------------------------------------------


def test_cohorts_and_weights_survive_the_packing(report_runs):
    one = read_run(report_runs / "steered-0")
    (shown,) = document(group_runs([one]))["runs"]
    order = order_clients(one.clients, one.manifest["data"])
    cells = unpack(shown["cohorts"]["cells"])
    weights = unpack(shown["cohorts"]["weights"]) / 65535 * shown["cohorts"]["top"]
    found = sorted((int(c) // 12, int(c) % 12, w) for c, w in zip(cells, weights, strict=True))
    wanted = sorted(
        (t, order.row[client], weight)
        for t, record in enumerate(one.records)
        for client, weight in zip(record.cohort, record.weights, strict=True)
    )
    assert np.array(found) == pytest.approx(np.array(wanted), abs=1e-5)


def test_the_accuracy_of_domains_survives_the_packing(report_runs):
    one = read_run(report_runs / "plain-0")
    (shown,) = document(group_runs([one]))["runs"]
    wanted = np.array([r.accuracy_domains for r in one.records])  # [4, 6]
    assert unpack(shown["domains"]["rounds"]).tolist() == [1, 2, 3, 4]
    found = unpack(shown["domains"]["values"]).reshape(4, 6) / 10000
    assert found == pytest.approx(wanted, abs=0.00006)
    names = one.manifest["data"]["domains"]
    best, worst = names[wanted[-1].argmax()], names[wanted[-1].argmin()]
    caption = shown["domains"]["caption"]
    assert f"in round 4: best {best} with {100 * wanted[-1].max():.1f} %" in caption
    assert f"worst {worst} with {100 * wanted[-1].min():.1f} %" in caption
    (shown,) = document(group_runs([read_run(report_runs / "mlp")]))["runs"]
    assert shown["domains"] is None


def test_domains_without_clients_or_test_samples_keep_the_names_of_the_others(
    report_runs, tmp_path
):
    path = tmp_path / "some"
    shutil.copytree(report_runs / "plain-0", path)
    clients = dict(np.load(path / "clients.npz"))
    clients["domains"] = np.where(clients["domains"] < 3, 1, 4)  # of six, two have clients
    np.savez(path / "clients.npz", **clients)
    records = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    for record in records:
        record["accuracy_domains"] = [float("nan"), 0.25]
    (path / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    one = read_run(path)
    data = document(group_runs([one]))
    shown = data["runs"][0]
    names = one.manifest["data"]["domains"]
    assert [g["name"] for g in data["pool"][shown["clients"]]["groups"]] == [names[1], names[4]]
    assert unpack(shown["domains"]["values"]).reshape(4, 2).tolist() == [[UNTESTED, 2500]] * 4
    assert f"best {names[4]} with 25.0 %, worst {names[4]}" in shown["domains"]["caption"]


def test_the_partition_and_the_index_survive_the_packing(report_runs):
    one = read_run(report_runs / "steered-0")
    data = document(group_runs([one]))
    shown = data["runs"][0]
    counts = unpack(data["pool"][shown["clients"]]["counts"]).reshape(12, 10)
    assert np.array_equal(counts, one.clients.label_counts)  # clients are in order of domains
    for map_, part in zip(data["pool"][shown["index"]]["maps"], (None, "feature"), strict=True):
        upper = unpack(map_["upper"])[: 12 * 13 // 2]
        cosines = one.index.similarity(part).numpy()[np.triu_indices(12)]
        own = upper == 255
        assert own.sum() == 12
        assert upper[~own] / 127 - 1 == pytest.approx(cosines[~own], abs=0.005)


@pytest.mark.parametrize("parts", [("feature",), ("feature", "label")])
def test_block_means_of_cosines_are_those_of_the_whole_matrix(report_runs, parts):
    index = ClientIndex.load(report_runs / "steered-0" / "index.safetensors")
    block = np.arange(12) % 5
    found = means_of(*block_cosines(index, parts, block, 5))
    whole = index.similarity(parts[0] if len(parts) == 1 else None).double().numpy()
    np.fill_diagonal(whole, np.nan)
    for a, b in itertools.product(range(5), repeat=2):
        wanted = np.nanmean(whole[block == a][:, block == b])
        assert found[a, b] == pytest.approx(wanted, abs=1e-5)


def test_clients_without_domains_are_ordered_by_dominant_label(report_runs):
    one = read_run(report_runs / "mlp")
    order = order_clients(one.clients, one.manifest["data"])
    assert order.by == "dominant label"
    dominant = one.clients.label_counts.argmax(1)[order.clients]
    assert np.array_equal(dominant, np.sort(dominant))
    assert np.array_equal(order.clients[order.rank], np.arange(12))


@pytest.mark.parametrize("most", [0, 255, 256, 65535, 65536])
def test_pack_takes_the_smallest_type(most):
    values = np.array([0, most, 1])
    packed = pack(values)
    assert np.array_equal(unpack(packed), values)
    assert packed["bits"] == (8 if most < 256 else 16 if most < 65536 else 32)


def test_sixty_runs_stay_under_three_megabytes_and_share_what_is_equal(manifest_template, tmp_path):
    paths = write_many(tmp_path / "runs", manifest_template)
    assert len(paths) == 60
    page = report.make_report([tmp_path / "runs"], tmp_path / "report.html")
    assert page.stat().st_size < 3e6
    data = embedded(page)
    assert len(data["groups"]) == 20
    assert {g["runs"] for g in data["groups"]} == {3}
    assert len({r["clients"] for r in data["runs"]}) == 3  # one a seed
    assert len({r["index"] for r in data["runs"]} - {None}) == 3


def test_many_clients_and_rounds_share_rows_and_columns(manifest_template, tmp_path):
    config = RunConfig(clients=500, rounds=450, participation=0.02)
    write_run(tmp_path / "large", manifest_template, config, "user", domains=6)
    data = embedded(report.make_report([tmp_path / "large"]))
    shown = data["runs"][0]
    assert data["pool"][shown["clients"]]["rows"] == 128
    assert shown["cohorts"]["width"] == 3
    assert int(unpack(shown["cohorts"]["times"]).sum()) == 450 * 10
    assert len(shown["seconds"]["stages"]["train"]) == 150
    rounds = unpack(shown["domains"]["rounds"])
    assert len(rounds) == len(set(rounds)) == 200
    assert (rounds[0], rounds[-1]) == (1, 450)
    assert "200 of 450 evaluated rounds are drawn" in shown["domains"]["caption"]


# ---- the command ----------------------------------------------------------------------------


def test_the_default_name_and_when_a_file_is_overwritten(
    report_runs, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    alone = tmp_path / "alone"
    shutil.copytree(report_runs / "plain-0", alone)
    assert report.main([str(alone)]) == 0
    assert (alone / "report.html").is_file()
    assert report.main([str(alone)]) == 0  # a report may be written again
    assert report.main([str(alone), str(report_runs / "mlp")]) == 0
    assert (tmp_path / "report.html").is_file()
    mine = tmp_path / "thesis.html"
    mine.write_text("years of work")
    assert report.main([str(alone), "-o", str(mine)]) == 2
    assert "thesis.html exists and is not a report" in capsys.readouterr().err
    assert mine.read_text() == "years of work"
    assert report.main([str(alone), "-o", str(mine), "--force"]) == 0
    assert "<!DOCTYPE html>" in mine.read_text()


def test_what_is_no_run_is_refused_by_name_before_anything_is_written(
    report_runs, tmp_path, capsys
):
    out = tmp_path / "report.html"
    (tmp_path / "empty").mkdir()
    for wrong in (tmp_path / "empty", tmp_path / "nowhere", report_runs / "mlp" / "config.toml"):
        assert report.main([str(report_runs / "mlp"), str(wrong), "-o", str(out)]) == 2
        assert f"{wrong} is not a run directory" in capsys.readouterr().err
    damaged = tmp_path / "damaged"
    shutil.copytree(report_runs / "mlp", damaged)
    lines = (damaged / "rounds.jsonl").read_text().splitlines(keepends=True)
    (damaged / "rounds.jsonl").write_text(lines[0] + "{}\n" + lines[2])
    assert report.main([str(damaged), "-o", str(out)]) == 2
    assert "rounds.jsonl, line 2" in capsys.readouterr().err
    (damaged / "manifest.json").write_text("{")
    assert report.main([str(damaged), "-o", str(out)]) == 2
    assert str(damaged) in capsys.readouterr().err
    assert not out.exists()
    assert report.main([str(report_runs / "mlp"), "-o", str(tmp_path / "no" / "report.html")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_without_the_libraries_the_command_says_what_to_install(
    report_runs, tmp_path, monkeypatch, capsys
):
    original = builtins.__import__

    def without(name, *rest):
        if name == "vl_convert":
            raise ImportError("not there", name=name)
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert report.main([str(report_runs / "mlp"), "-o", str(tmp_path / "report.html")]) == 2
    assert "pip install 'c2v_sim[report]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_read_is_called_so(tmp_path, capsys):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert report.main([str(loop)]) == 2
    error = capsys.readouterr().err
    assert f"{loop} cannot be read: Too many levels of symbolic links" in error
    assert "not a run directory" not in error


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid(), reason="must begin as root")
@pytest.mark.parametrize("name", ["closed", "closed/run"])
def test_a_folder_without_permission_is_called_so(for_everybody, name):
    """In a process that is not root: root may do everything."""
    (for_everybody / "closed").mkdir(mode=0o700)
    script = "import os, sys\nfrom c2v_sim.report import __main__ as report\nos.setuid(65534)\n"
    script += "sys.exit(report.main(sys.argv[1:]))"
    command = [sys.executable, "-P", "-c", script, str(for_everybody / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert f"{name} cannot be read: Permission denied; change its permissions" in done.stderr


@pytest.mark.parametrize("text", ["[]", "", '{"data": {"na', "null"])
def test_a_damaged_manifest_is_named(tmp_path, capsys, text):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text("rounds = 2")
    (tmp_path / "run" / "manifest.json").write_text(text)
    assert report.main([str(tmp_path / "run")]) == 2
    assert f"{tmp_path / 'run' / 'manifest.json'} is " in capsys.readouterr().err
