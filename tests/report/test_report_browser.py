"""The report's page in a real browser: everything is drawn, reachable, and loads nothing."""

import itertools
import json
import re
import shutil

import numpy as np
import pytest
from report_directories import NO_INDEX, NOT_FINITE, write_run

pytest.importorskip("altair", reason="pip install 'c2v_sim[report]'")
pytest.importorskip("vl_convert", reason="pip install 'c2v_sim[report]'")

from c2v_sim.config import RunConfig
from c2v_sim.report import __main__ as report
from c2v_sim.run.reader import read_run

FIGURES = {"curves", "timeline", "weights", "histogram", "partition", "times"}
DOMAIN_FIGURES = {"domains"}
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
def test_every_figure_of_one_run_is_drawn(browser, report_runs, tmp_path, width, scheme):
    path = report.make_report([report_runs / "steered-0"], tmp_path / "report.html")
    opened = Opened(browser, path, width, scheme)
    marks = opened.marks()
    assert marks.keys() == FIGURES | DOMAIN_FIGURES | INDEX_FIGURES
    assert marks["domains"] == 6 + 6 * 4  # a line a domain, and a dot a round
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


def test_of_two_runs_both_cohorts_and_the_index_are_there_at_once(browser, report_runs, tmp_path):
    paths = [report_runs / name for name in ("plain-0", "steered-0")]
    opened = Opened(browser, report.make_report(paths, tmp_path / "report.html"))
    marks = opened.marks()
    assert marks.keys() >= {"curves", "timeline-0", "timeline-1", "index", "groups"}
    assert marks["timeline-0"] == marks["timeline-1"] == 4 * 4  # rounds × cohort
    assert marks["curves"] == 2 * (1 + 4)  # a line a run, and a dot a round
    titles = opened.page.locator("#two h3").all_text_contents()
    assert titles == ["fedavg, seed 0", "fedavg + Client2Vec, seed 0"]
    assert opened.page.locator("#facts").text_content().startswith("steered-0")
    opened.close()


def test_headings_are_in_order_and_controls_have_names(browser, report_of_many):
    opened = Opened(browser, report_of_many)
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


def test_the_keyboard_reaches_everything_and_another_run_changes_the_figures(
    browser, report_of_many
):
    opened = Opened(browser, report_of_many)
    page = opened.page
    assert opened.marks().keys() == FIGURES | {"group-times"}  # mlp: no domains, no index
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
    assert opened.marks().keys() == FIGURES | DOMAIN_FIGURES | INDEX_FIGURES | {"group-times"}
    assert page.inner_text("figure[data-figure=timeline] figcaption") != before
    opened.close()


def test_curves_can_be_chosen_and_measured_differently(browser, report_of_many):
    opened = Opened(browser, report_of_many)
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


def test_an_unfinished_run_leaves_out_the_figures_it_cannot_have(browser, report_runs, tmp_path):
    path = report.make_report([report_runs / "stopped"], tmp_path / "report.html")
    opened = Opened(browser, path, width=360)
    assert opened.marks().keys() == FIGURES - {"histogram", "partition"} | DOMAIN_FIGURES
    assert "does not say which classes" in opened.page.inner_text("#missing")
    assert opened.overflow() <= 0
    opened.close()


def test_curves_of_domains_are_named_and_rounds_have_whole_numbers(browser, report_runs, tmp_path):
    path = report.make_report([report_runs / "stopped"], tmp_path / "report.html")
    opened = Opened(browser, path)
    figure = opened.page.locator("figure[data-figure=domains]")
    names = ["flat", "outline", "neon", "textured", "foggy", "mosaic"]
    assert figure.locator(".legend li").all_inner_texts() == names
    read = "(all, name) => all.map((e) => e.getAttribute(name))"
    swatches = figure.locator(".legend line").evaluate_all(read, "stroke")
    lines = figure.locator(".mark-line.role-mark path")
    assert lines.evaluate_all(read, "stroke") == swatches
    assert len(set(swatches)) == 6
    ends = [float(path.split(",")[-1]) for path in lines.evaluate_all(read, "d")]  # from the top
    wanted = read_run(report_runs / "stopped").records[-1].accuracy_domains
    assert np.corrcoef(ends, wanted)[0, 1] == pytest.approx(-1, abs=1e-3)
    labels = figure.locator(".role-axis-label").first.locator("text").all_text_contents()
    assert [text for text in labels if text] == ["1", "2"]  # not 1, 2, 2
    opened.close()


@pytest.mark.parametrize("width", [1200, 360])
def test_failures_are_seen_above_in_the_table_and_in_the_detail(
    browser, failed_cells, tmp_path, width
):
    path = report.make_report([failed_cells], tmp_path / "report.html")
    opened = Opened(browser, path, width)
    page = opened.page
    assert "4 of 10 runs failed" in page.inner_text("#banners")
    assert page.locator("#failure").is_hidden()
    page.locator("#every-run > summary").click()
    rows = page.locator("#runs tbody tr")
    assert rows.count() == 10
    assert page.locator("#runs tbody button").count() == 7  # three have nothing to show
    assert NO_INDEX in rows.filter(has_text="steered-2").inner_text()
    rows.filter(has_text="plain-3").get_by_role("button").click()
    opened.wait()
    assert page.inner_text("#failure") == f"This run failed: {NOT_FINITE}"
    assert page.locator("#run option:checked").inner_text().endswith("(plain-3), failed")
    assert opened.overflow() <= 0
    assert "(2 of 4 runs)" in page.inner_text("figure[data-figure=curves] figcaption")
    opened.close()


def test_large_maps_are_painted_on_a_canvas_with_a_description(
    browser, manifest_template, tmp_path
):
    config = RunConfig(clients=100, rounds=12, improve=("sampling",))
    write_run(tmp_path / "large", manifest_template, config)
    opened = Opened(browser, report.make_report([tmp_path / "large"]))
    assert opened.marks()["index"] > 20
    figure = opened.page.query_selector("figure[data-figure=index]")
    assert figure.query_selector("canvas")
    drawing = figure.query_selector("[role=graphics-document]")
    assert "Mean cosine of two clients" in drawing.get_attribute("aria-label")
    banner = opened.page.inner_text("#banners")
    assert "this run trained on cifar10-standin(shapes), not on cifar10" in banner
    opened.close()


def test_names_from_files_are_never_taken_for_html(browser, manifest_template, tmp_path):
    write_run(tmp_path / "evil", manifest_template, RunConfig(clients=12, rounds=2), EVIL)
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
