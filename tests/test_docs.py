"""What the documents say is so: links, commands, flags, code, hooks, citation."""

import argparse
import importlib
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import torch

from c2v_sim import Algorithm, Federation, RunConfig, Simulator, ops
from c2v_sim.index import __main__ as index
from c2v_sim.report import __main__ as report
from c2v_sim.run import __main__ as run
from c2v_sim.sweep import __main__ as sweep

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").glob("*.md")
)
TEXTS = {str(page.relative_to(ROOT)): page.read_text() for page in PAGES}
# A line in backticks, or a line of a block.
COMMANDS = [
    (name, line)
    for name, text in TEXTS.items()
    for line in re.findall(r"(?:^|`)(python (?:-m c2v_sim|bench/|examples/)[^`\n]*)", text, re.M)
]


def fenced(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def test_the_pages_are_there():
    names = ("concepts", "adding-an-algorithm", "kernels", "reproducing-the-paper", "performance")
    assert {f"docs/{name}.md" for name in names} <= TEXTS.keys()
    assert len(TEXTS["README.md"].splitlines()) < 130


@pytest.mark.parametrize("name", TEXTS)
def test_links_lead_to_files(name):
    for target in re.findall(r"\]\(([^)#\s]+)", TEXTS[name]):
        if not target.startswith("https://"):
            assert ((ROOT / name).parent / target).exists(), target


@pytest.mark.parametrize("name", TEXTS)
def test_files_that_are_named_exist(name):
    """In backticks, by their path, such as `tests/test_aot.py`."""
    folders = "c2v_sim|csrc|kernels|tests|bench|examples|docs"
    found = re.findall(rf"`((?:{folders})/[\w./-]+)`", TEXTS[name])
    for path in found:
        assert (ROOT / path).exists(), path


def flags_of(parser: argparse.ArgumentParser) -> set[str]:
    return {flag for action in parser._actions for flag in action.option_strings}


@pytest.mark.parametrize(("name", "line"), COMMANDS)
def test_commands_name_modules_and_flags_that_exist(name, line):
    words = shlex.split(line.replace("<run>", "RUN").replace("FILE.toml", "FILE"), comments=True)
    given = {word for word in words if word.startswith("--")}
    if words[1] != "-m":
        script = (ROOT / words[1]).read_text()
        assert all(f'"{flag}"' in script for flag in given)
        return
    module = importlib.import_module(words[2])
    parsers = {f"c2v_sim.{m.__name__.split('.')[1]}": m for m in (run, index, sweep, report)}
    if words[2] not in parsers:
        assert all(f'"{flag}"' in Path(module.__file__).read_text() for flag in given)
        return
    parser = parsers[words[2]].parser()
    assert given <= flags_of(parser), given - flags_of(parser)
    parser.parse_args(words[3:])  # values too: an unknown model, algorithm or index ends here


def test_every_kind_of_command_was_found():
    shown = {line.split()[2] for _, line in COMMANDS if line.split()[1] == "-m"}
    assert shown >= {f"c2v_sim.{name}" for name in ("run", "index", "sweep", "report", "doctor")}
    assert len(COMMANDS) > 15


@pytest.mark.parametrize("name", TEXTS)
def test_flags_in_the_text_are_flags_of_a_command(name):
    known = flags_of(run.parser()) | flags_of(index.parser()) | flags_of(sweep.parser())
    known |= {"--measure", "--compiled", "--check"}  # of doctor, of pytest in bench, of ruff
    prose = re.sub(r"^```.*?^```", "", TEXTS[name], flags=re.DOTALL | re.MULTILINE)
    prose = re.sub(r"`python [^`]*`", "", prose)  # commands have a test of their own
    for flag in re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", prose):
        assert flag in known, flag


BLOCKS = [(name, code) for name in TEXTS for code in fenced(TEXTS[name], "python")]


@pytest.mark.parametrize(("name", "code"), BLOCKS, ids=[name for name, _ in BLOCKS])
def test_code_runs_as_it_is_printed(name, code):
    if name != "README.md":  # that one has a test of its own
        exec(compile(code, name, "exec"), {"__name__": "docs"})


def hooks_in_the_table():
    return re.findall(r"^\| `(\w+)` \|", TEXTS["docs/adding-an-algorithm.md"], re.MULTILINE)


def test_every_hook_is_described_and_exists():
    hooks = {name for name, value in vars(Algorithm).items() if callable(value)}
    assert set(hooks_in_the_table()) == hooks - {"local_loss"}
    assert "`local_loss`" in TEXTS["docs/adding-an-algorithm.md"]


def test_the_hooks_are_called_in_the_order_of_the_table():
    called = []

    class Keeping(Algorithm):  # clients keep something, so that they are asked to personalise
        def start(self, run):
            self.personal = run.client_rows("own", 1)

        def finish(self, client, row, origin):
            self.personal.write(client, row[:1])

        personal = None

    class Watching(Keeping):
        pass

    def watch(name):
        def hook(self, *arguments):
            called.append(name)
            return getattr(Keeping, name)(self, *arguments)

        setattr(Watching, name, hook)

    for name in hooks_in_the_table():
        watch(name)
    g = torch.Generator().manual_seed(0)
    x = torch.randn(60, 12, generator=g).reshape(60, 3, 2, 2)
    federation = Federation.from_arrays(x, (x[:, 0, 0, 0] > 0).long(), torch.arange(60) % 6)
    config = RunConfig(model="mlp", rounds=1, participation=0.5, lanes=1, local_epochs=1)
    simulator = Simulator(federation, config, algorithm=Watching())
    simulator.run()
    simulator.close()
    assert list(dict.fromkeys(called)) == hooks_in_the_table()
    assert called.count("begin") == called.count("finish") == 3


def test_what_a_hook_is_given_exists():
    from c2v_sim.algorithms.run_parts import RunParts
    from c2v_sim.training.local_client import LocalClient

    page = TEXTS["docs/adding-an-algorithm.md"]
    source = Path(importlib.import_module("c2v_sim.training.local_client").__file__).read_text()
    for name in set(re.findall(r"`client\.(\w+)", page)):
        assert hasattr(LocalClient, name) or f"self.{name}" in source, name
    for name in set(re.findall(r"`run\.(\w+)\(", page)):
        assert hasattr(RunParts, name), name


def test_the_operators_named_are_the_operators():
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", TEXTS["docs/kernels.md"], re.MULTILINE)
    named = {name.strip("`") for row in rows for name in row.split(", ")}
    assert named <= set(ops.__all__)
    assert {"weighted_sum", "fused_ffn", "client_scores"} <= named


def test_the_run_directory_is_described_as_it_is():
    page = TEXTS["docs/concepts.md"]
    for name in ("CONFIG", "MANIFEST", "PARTITION", "ROUNDS", "TABLE", "INDEX", "MODEL", "RESULT"):
        assert f"`{getattr(run.run_directory, name)}`" in page, name


def test_the_citation_has_what_its_schema_requires():
    """CFF 1.2.0: authors, cff-version, message and title; a reference: authors, title, type."""
    text = (ROOT / "CITATION.cff").read_text()
    keys = dict(re.findall(r"^([a-z-]+):[ ]?(.*)$", text, re.MULTILINE))
    assert {"authors", "cff-version", "message", "title"} <= keys.keys()
    assert keys["cff-version"] == "1.2.0"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert keys["version"] == project["version"]
    assert keys["license"] == project["license"] == "MIT"
    assert (ROOT / "LICENSE").read_text().startswith("MIT License")
    reference = text.split("references:")[1]
    assert all(f"{key}:" in reference for key in ("type", "title", "authors"))
    assert f"## [{project['version']}]" in TEXTS["CHANGELOG.md"]
