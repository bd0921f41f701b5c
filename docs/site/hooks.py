"""What mkdocs shows besides docs/: the README as front page, examples, notebooks, tables.

Pages are made in memory, so the repository holds every text once. Links keep the form that works in
the repository (`docs/ranks.md`, `examples/own_dataset.py`) and are turned into those of the site.
"""

import json
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))  # mkdocs loads a hook as a lone file

from paper_page import paper_page  # noqa: E402

EXAMPLES = sorted([*(ROOT / "examples").glob("*.py"), *(ROOT / "examples").glob("*.ipynb")])
# A file of the repository -> its page.
PLACES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "CITATION.cff": "citation.md",
    "LICENSE": "licence.md",
} | {f"examples/{file.name}": f"example-{file.stem}.md" for file in EXAMPLES}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Complete the navigation: all examples, and the pages of docs/ that it does not name."""
    sections = {name: entry for item in config.nav for name, entry in item.items()}
    sections["Examples"] += [PLACES[f"examples/{file.name}"] for file in EXAMPLES]
    named = json.dumps(config.nav)
    pages = sorted(page.name for page in Path(config.docs_dir).glob("*.md"))
    sections["How to"] += [name for name in pages if f'"{name}"' not in named]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here."""
    texts = {place: as_page(ROOT / source) for source, place in PLACES.items()}
    for place, text in (texts | {"paper-tables.md": paper_page()}).items():
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links between files of the repository become links between pages."""

    def place(link: re.Match) -> str:
        target = link[1].removeprefix("../").removeprefix("docs/")
        return f"]({PLACES.get(target, target)}"

    return re.sub(r"\]\((?!https?:)([^)#\s]+)", place, markdown)


def as_page(file: Path) -> str:
    """A file as Markdown: texts as they are, scripts and notebooks with their code."""
    text = file.read_text()
    if file.suffix == ".md":
        return text
    if file.suffix == ".ipynb":
        return "\n\n".join(as_markdown(cell) for cell in json.loads(text)["cells"])
    language = {".py": "python", ".cff": "yaml"}.get(file.suffix, "text")
    return f"# {file.name}\n\n{fenced(text, language)}"


def as_markdown(cell: dict) -> str:
    source = "".join(cell["source"])
    return source if cell["cell_type"] == "markdown" else fenced(source, "python")


def fenced(text: str, language: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```\n"
