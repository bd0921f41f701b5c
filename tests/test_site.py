"""The site of the documents is built, strictly and without the network, and is complete."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import c2v_sim
from c2v_sim.sweep.tables.paper import paper_names

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-P", "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return out


class Loads(HTMLParser):
    """What a browser fetches to show a page."""

    def __init__(self, page: Path):
        super().__init__()
        self.addresses: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag in ("script", "img", "iframe") and given.get("src"):
            self.addresses.append(given["src"])
        if tag == "link" and given.get("rel") in ("stylesheet", "preload", "icon"):
            self.addresses.append(given["href"])


def test_every_document_and_example_is_a_page_of_the_navigation(site):
    front = (site / "index.html").read_text()
    sources = [*(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.py")]
    sources += (ROOT / "examples").glob("*.ipynb")
    for source in sources:
        name = source.stem if source.suffix == ".md" else f"example-{source.stem}"
        assert f'href="{name}.html"' in front, source.name
    assert "make run" in front  # the README


def test_the_reference_is_the_public_interface(site):
    page = (site / "api.html").read_text()
    described = set(re.findall(r'<h2 id="c2v_sim\.(\w+)"', page))
    assert described == set(c2v_sim.__all__)


def test_the_tables_of_the_paper_are_there(site):
    page = (site / "paper-tables.html").read_text()
    assert page.count("<table>") == len(paper_names())
    assert "49.93 ± 0.12" in page  # FedAvg on Shakespeare, the first of the main table


def test_pages_load_nothing_from_elsewhere(site):
    pages = sorted(site.glob("*.html"))
    assert len(pages) > 15
    for page in pages:
        found = Loads(page).addresses
        assert found
        assert [a for a in found if re.match(r"(https?:)?//", a)] == [], page.name


def test_the_search_knows_the_documents(site):
    index = json.loads((site / "search/search_index.json").read_text())
    assert any(entry["location"].startswith("concepts.html") for entry in index["docs"])
