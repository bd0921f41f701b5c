"""The report command: from real run directories to a page, in a real browser."""

import builtins
import itertools
import json
import os
import re
import shutil

import numpy as np
import pytest
from report_directories import write_many, write_run

pytest.importorskip("altair", reason="pip install 'c2v_sim[report]'")
pytest.importorskip("vl_convert", reason="pip install 'c2v_sim[report]'")

from c2v_sim import report, run
from c2v_sim.client_index import ClientIndex
from c2v_sim.config import RunConfig
from c2v_sim.report_clients import order_clients, pack
from c2v_sim.report_data import curve, document
from c2v_sim.report_index import block_cosines, means_of
from c2v_sim.report_runs import find_runs, group_runs, read_run, read_runs

TINY = ["--train-size", "600", "--test-size", "200", "--local-epochs", "1", "--batch-size", "16"]
DOMAINS = ["--partition", "by-domain", "--clients-per-domain", "2", "--model", "linear"]
DOMAINS += ["--participation", "0.4", "--rounds", "4"]
STEERED = ["--improve", "sampling", "aggregation", "local", "--index-epochs", "1"]
STEERED += ["--index-dropout", "0", "--index-max-samples", "10"]
RUNS = {
    "steered-0": [*DOMAINS, *STEERED, "--seed", "0"],
    "steered-1": [*DOMAINS, *STEERED, "--seed", "1"],
    "plain-0": [*DOMAINS, "--seed", "0"],
    "plain-1": [*DOMAINS, "--seed", "1"],
    "mlp": ["--clients", "12", "--model", "mlp", "--participation", "0.25", "--rounds", "3"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Real runs, and one of them as it was left after two rounds."""
    before = os.environ.get("C2V_DATA")
    os.environ["C2V_DATA"] = str(tmp_path_factory.getbasetemp() / "data")
    folder = tmp_path_factory.mktemp("runs") / "cells"
    for name, flags in RUNS.items():
        assert run.main([*TINY, *flags, "--out", str(folder / name)]) == 0
    if before is None:
        del os.environ["C2V_DATA"]
    else:
        os.environ["C2V_DATA"] = before
    stopped = folder / "stopped"
    shutil.copytree(folder / "plain-0", stopped)
    config = (stopped / "config.toml").read_text()
    (stopped / "config.toml").write_text(config.replace("seed = 0", "seed = 2"))
    (stopped / "result.json").unlink()
    (stopped / "clients.npz").unlink()  # as older versions left it
    lines = (stopped / "rounds.jsonl").read_text().splitlines(keepends=True)
    (stopped / "rounds.jsonl").write_text("".join(lines[:2]) + lines[2][:50])
    return folder


@pytest.fixture(scope="module")
def many(runs, tmp_path_factory):
    return report.make_report([runs], tmp_path_factory.mktemp("many") / "report.html")


@pytest.fixture(scope="module")
def template(runs):
    return json.loads((runs / "steered-0" / "manifest.json").read_text())


def embedded(page):
    (text,) = re.findall(
        r'<script id="data" type="application/json">(.*?)</script>', page.read_text(), re.DOTALL
    )
    return json.loads(text)


def unpack(packed):
    import base64

    return np.frombuffer(base64.b64decode(packed["data"]), f"<u{packed['bits'] // 8}")


# ---- reading --------------------------------------------------------------------------------


def test_runs_that_differ_in_the_seed_alone_are_one_experiment(runs):
    groups = group_runs(read_runs(find_runs([runs])))
    members = {group.label: [r.name for r in group.runs] for group in groups}
    assert members == {
        "fedavg; dirichlet; mlp; rounds 3; participation 0.25": ["mlp"],
        "fedavg; by-domain; linear; rounds 4; participation 0.4": ["plain-0", "plain-1", "stopped"],
        "fedavg + Client2Vec; by-domain; linear; rounds 4; participation 0.4": [
            "steered-0",
            "steered-1",
        ],
    }


def test_curves_are_mean_and_range_over_the_seeds_that_got_there(runs):
    three = read_runs([runs / name for name in ("plain-0", "plain-1", "stopped")])
    values = np.array([[100 * r.accuracy for r in one.evaluated] for one in three[:2]])
    made = curve(three, "accuracy")
    assert made["round"] == [1, 2, 3, 4]
    assert made["runs"] == [3, 3, 2, 2]
    assert made["mean"][2:] == pytest.approx(values.mean(0)[2:], abs=0.006)
    assert made["low"] == pytest.approx(values.min(0), abs=0.006)
    assert made["high"] == pytest.approx(values.max(0), abs=0.006)


def test_the_clients_of_a_run_are_kept_with_it(runs):
    one = read_run(runs / "plain-0", "plain-0")
    counts = one.clients.label_counts
    assert counts.shape == (12, 10)
    assert counts.sum() == 600
    assert one.clients.test_sizes.sum() == 200
    assert one.clients.domains.tolist() == [d for d in range(6) for _ in range(2)]
    older = read_run(runs / "stopped", "stopped").clients  # sizes are in the partition
    assert older.label_counts is None
    for name in ("sizes", "test_sizes", "domains"):
        assert np.array_equal(getattr(older, name), getattr(one.clients, name)), name
    assert read_run(runs / "mlp", "mlp").clients.domains is None


def test_an_unfinished_run_is_shown_with_what_it_has(runs, many):
    data = embedded(many)
    (shown,) = (r for r in data["runs"] if r["name"] == "stopped")
    assert "2 of 4, unfinished" in shown["facts"]
    assert shown["accuracy"] is None
    assert shown["cohorts"]["rounds"] == 2
    assert data["pool"][shown["clients"]]["counts"] is None
    assert "known once the run is finished" in shown["missing"]
    (row,) = (row for row in data["every_run"]["rows"] if row[0] == "stopped")
    assert "2 of 4, unfinished" in row


def test_a_run_without_a_round_yet(runs, tmp_path):
    begun = tmp_path / "begun"
    shutil.copytree(runs / "plain-0", begun)
    for name in ("rounds.jsonl", "result.json"):
        (begun / name).unlink()
    data = embedded(report.make_report([begun]))
    assert data["runs"][0]["cohorts"] is None
    assert "No round is finished yet" in data["runs"][0]["missing"]
    assert data["summary"]["rows"][0][1:3] == ["–", "–"]


# ---- what the page is given -----------------------------------------------------------------


def test_cohorts_and_weights_survive_the_packing(runs):
    one = read_run(runs / "steered-0", "steered-0")
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


def test_the_partition_and_the_index_survive_the_packing(runs):
    one = read_run(runs / "steered-0", "steered-0")
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
def test_block_means_of_cosines_are_those_of_the_whole_matrix(runs, parts):
    index = ClientIndex.load(runs / "steered-0" / "index.safetensors")
    block = np.arange(12) % 5
    found = means_of(*block_cosines(index, parts, block, 5))
    whole = index.similarity(parts[0] if len(parts) == 1 else None).double().numpy()
    np.fill_diagonal(whole, np.nan)
    for a, b in itertools.product(range(5), repeat=2):
        wanted = np.nanmean(whole[block == a][:, block == b])
        assert found[a, b] == pytest.approx(wanted, abs=1e-5)


def test_clients_without_domains_are_ordered_by_dominant_label(runs):
    one = read_run(runs / "mlp", "mlp")
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


def test_sixty_runs_stay_under_three_megabytes_and_share_what_is_equal(template, tmp_path):
    paths = write_many(tmp_path / "runs", template)
    assert len(paths) == 60
    page = report.make_report([tmp_path / "runs"], tmp_path / "report.html")
    assert page.stat().st_size < 3e6
    data = embedded(page)
    assert len(data["groups"]) == 20
    assert {g["runs"] for g in data["groups"]} == {3}
    assert len({r["clients"] for r in data["runs"]}) == 3  # one a seed
    assert len({r["index"] for r in data["runs"]} - {None}) == 3


def test_many_clients_and_rounds_share_rows_and_columns(template, tmp_path):
    config = RunConfig(clients=500, rounds=450, participation=0.02)
    write_run(tmp_path / "large", template, config, "user")
    data = embedded(report.make_report([tmp_path / "large"]))
    shown = data["runs"][0]
    assert data["pool"][shown["clients"]]["rows"] == 128
    assert shown["cohorts"]["width"] == 3
    assert int(unpack(shown["cohorts"]["times"]).sum()) == 450 * 10
    assert len(shown["seconds"]["stages"]["train"]) == 150


# ---- the command ----------------------------------------------------------------------------


def test_the_default_name_and_when_a_file_is_overwritten(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    alone = tmp_path / "alone"
    shutil.copytree(runs / "plain-0", alone)
    assert report.main([str(alone)]) == 0
    assert (alone / "report.html").is_file()
    assert report.main([str(alone)]) == 0  # a report may be written again
    assert report.main([str(alone), str(runs / "mlp")]) == 0
    assert (tmp_path / "report.html").is_file()
    mine = tmp_path / "thesis.html"
    mine.write_text("years of work")
    assert report.main([str(alone), "-o", str(mine)]) == 2
    assert "thesis.html exists and is not a report" in capsys.readouterr().err
    assert mine.read_text() == "years of work"
    assert report.main([str(alone), "-o", str(mine), "--force"]) == 0
    assert "<!DOCTYPE html>" in mine.read_text()


def test_what_is_no_run_is_refused_by_name_before_anything_is_written(runs, tmp_path, capsys):
    out = tmp_path / "report.html"
    (tmp_path / "empty").mkdir()
    for wrong in (tmp_path / "empty", tmp_path / "nowhere", runs / "mlp" / "config.toml"):
        assert report.main([str(runs / "mlp"), str(wrong), "-o", str(out)]) == 2
        assert f"{wrong} is not a run directory" in capsys.readouterr().err
    damaged = tmp_path / "damaged"
    shutil.copytree(runs / "mlp", damaged)
    lines = (damaged / "rounds.jsonl").read_text().splitlines(keepends=True)
    (damaged / "rounds.jsonl").write_text(lines[0] + "{}\n" + lines[2])
    assert report.main([str(damaged), "-o", str(out)]) == 2
    assert "rounds.jsonl, line 2" in capsys.readouterr().err
    (damaged / "manifest.json").write_text("{")
    assert report.main([str(damaged), "-o", str(out)]) == 2
    assert str(damaged) in capsys.readouterr().err
    assert not out.exists()
    assert report.main([str(runs / "mlp"), "-o", str(tmp_path / "no" / "report.html")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_without_the_libraries_the_command_says_what_to_install(
    runs, tmp_path, monkeypatch, capsys
):
    original = builtins.__import__

    def without(name, *rest):
        if name == "vl_convert":
            raise ImportError("not there", name=name)
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert report.main([str(runs / "mlp"), "-o", str(tmp_path / "report.html")]) == 2
    assert "pip install 'c2v_sim[report]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# ---- in the browser -------------------------------------------------------------------------

FIGURES = {"curves", "timeline", "weights", "histogram", "partition", "times"}
INDEX_FIGURES = {"groups", "index", "index-feature"}
EVIL = '</script><script>document.title = "taken"</script><img src=x onerror="document.title=1">'


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(names)} is installed")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield running
        running.close()


class Opened:
    """A page in a window of its own that remembers everything that went wrong."""

    def __init__(self, browser, path, width=1200, scheme="light"):
        size = {"width": width, "height": 900}
        self.context = browser.new_context(viewport=size, color_scheme=scheme)
        self.page, self.wrong, self.requests = self.context.new_page(), [], []
        self.page.on("console", lambda message: self.wrong.append(message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.wait()

    def wait(self):
        self.page.wait_for_function("document.documentElement.dataset.ready === 'true'")

    def marks(self):
        """Of each figure that is shown: how many marks it has, or different colours on a canvas."""
        script = """() => Object.fromEntries(
            [...document.querySelectorAll("figure:not([hidden])")].map((figure) => {
              const canvas = figure.querySelector("canvas");
              const { figure: name } = figure.dataset;
              const kinds = ["rect", "symbol", "line"].map((k) => `.role-mark.mark-${k} path`);
              if (!canvas) return [name, figure.querySelectorAll(kinds.join()).length];
              const { width, height } = canvas;
              const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
              return [name, new Set(new Uint32Array(data.buffer)).size];
            }))"""
        return self.page.evaluate(script)

    def overflow(self):
        return self.page.evaluate("document.documentElement.scrollWidth - innerWidth")

    def close(self):
        self.context.close()
        assert self.wrong == []
        assert [url[:8] for url in self.requests] == ["file:///"]


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (1200, "dark"), (360, "light")])
def test_every_figure_of_one_run_is_drawn(browser, runs, tmp_path, width, scheme):
    path = report.make_report([runs / "steered-0"], tmp_path / "report.html")
    opened = Opened(browser, path, width, scheme)
    marks = opened.marks()
    assert marks.keys() == FIGURES | INDEX_FIGURES
    assert marks["timeline"] == 4 * 4  # rounds × cohort
    assert marks["index"] == marks["index-feature"] == 12 * 11
    assert marks["groups"] == 36
    assert marks["times"] == 4 * 4
    assert all(marks.values()), marks
    assert opened.overflow() <= 0
    background = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background))) < 200) == (scheme == "dark")
    for figure in opened.page.query_selector_all("figure:not([hidden])"):
        drawing = figure.query_selector("[role=graphics-document]")
        caption = figure.query_selector("figcaption").inner_text()
        assert caption in drawing.get_attribute("aria-label")
        assert re.search(r"\d", caption)
    assert "stand-in encoder builtin" in opened.page.inner_text("#summary")
    assert "in place of the paper's CLIP" in opened.page.inner_text(".banner")
    assert opened.page.locator("#run").is_hidden()
    opened.close()


def test_headings_are_in_order_and_controls_have_names(browser, many):
    opened = Opened(browser, many)
    levels = [
        int(h.evaluate("h => h.tagName[1]"))
        for h in opened.page.query_selector_all("h1, h2, h3, h4")
    ]
    assert levels[0] == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels))
    nameless = opened.page.evaluate(
        """[...document.querySelectorAll("select, input")].filter((e) => !e.labels.length).length"""
    )
    assert nameless == 0
    opened.close()


def test_the_keyboard_reaches_everything_and_another_run_changes_the_figures(browser, many):
    opened = Opened(browser, many)
    page = opened.page
    assert opened.marks().keys() == FIGURES | {"group-times"}  # the first run, mlp, has no index
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "theme"
    page.keyboard.press("Enter")
    opened.wait()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.get_attribute("#theme", "aria-pressed") == "true"
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "run":
            break
    assert page.evaluate("document.activeElement.id") == "run"
    style = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert style == "solid"
    before = page.inner_text("figure[data-figure=timeline] figcaption")
    page.keyboard.press("End")  # the last run
    opened.wait()
    assert "steered-1" in page.inner_text("#facts")
    assert opened.marks().keys() == FIGURES | INDEX_FIGURES | {"group-times"}
    assert page.inner_text("figure[data-figure=timeline] figcaption") != before
    opened.close()


def test_curves_can_be_chosen_and_measured_differently(browser, many):
    opened = Opened(browser, many)
    page = opened.page
    assert opened.marks()["curves"] == 3 + 4 + 4 + 3  # a line each, and a dot a round
    page.get_by_label("fedavg; dirichlet; mlp").click()
    opened.wait()
    assert opened.marks()["curves"] == 2 + 4 + 4
    before = page.inner_text("figure[data-figure=curves] figcaption")
    page.select_option("#measure", label="worst 10 % of clients")
    opened.wait()
    after = page.inner_text("figure[data-figure=curves] figcaption")
    assert after != before
    assert "from the smallest to the largest" in after
    opened.close()


def test_an_unfinished_run_leaves_out_the_figures_it_cannot_have(browser, runs, tmp_path):
    path = report.make_report([runs / "stopped"], tmp_path / "report.html")
    opened = Opened(browser, path, width=360)
    assert opened.marks().keys() == FIGURES - {"histogram", "partition"}
    assert "does not say which classes" in opened.page.inner_text("#missing")
    assert opened.overflow() <= 0
    opened.close()


def test_large_maps_are_painted_on_a_canvas_with_a_description(browser, template, tmp_path):
    config = RunConfig(clients=100, rounds=12, improve=("sampling",))
    write_run(tmp_path / "large", template, config)
    opened = Opened(browser, report.make_report([tmp_path / "large"]))
    assert opened.marks()["index"] > 20
    figure = opened.page.query_selector("figure[data-figure=index]")
    assert figure.query_selector("canvas")
    drawing = figure.query_selector("[role=graphics-document]")
    assert "Mean cosine of two clients" in drawing.get_attribute("aria-label")
    banner = opened.page.inner_text("#standins")
    assert "this run trained on cifar10-standin(shapes), not on cifar10" in banner
    opened.close()


def test_names_from_files_are_never_taken_for_html(browser, template, tmp_path):
    write_run(tmp_path / "evil", template, RunConfig(clients=12, rounds=2), EVIL)
    manifest = json.loads((tmp_path / "evil" / "manifest.json").read_text())
    manifest |= {"commit": EVIL, "{{bundle}}": EVIL}
    manifest["data"]["classes"] = [f"{EVIL}{k}" for k in range(10)]
    (tmp_path / "evil" / "manifest.json").write_text(json.dumps(manifest))
    path = report.make_report([tmp_path / "evil"])
    assert path.read_text().count("</script>") == 4
    opened = Opened(browser, path)
    assert opened.page.title().startswith(EVIL)
    opened.page.hover("figure[data-figure=partition] .role-mark.mark-rect path")
    opened.page.wait_for_selector("#vg-tooltip-element.visible")
    assert EVIL in opened.page.inner_text("#vg-tooltip-element")
    assert opened.page.query_selector("img") is None
    assert EVIL in opened.page.inner_text("#summary")
    opened.close()
