"""The report: `python -m c2v_sim.report RUN_DIR…` (also `c2v-sim report`).

One HTML file about one run or many, which needs nothing else: figures, tables, manifests, and the
JavaScript that draws them. A folder stands for all run directories inside it, such as those of a
sweep; a cell that failed before it had one is listed with the reason. Exit codes: 0 done, 1 the
report could not be written, 2 bad input.
"""

import argparse
import html
import json
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from c2v_sim.report.clients import PlainData
from c2v_sim.report.groups import Group, group_runs
from c2v_sim.report.page_data import document
from c2v_sim.report.runs import find_runs, read_runs
from c2v_sim.system.errors import fail
from c2v_sim.system.files import write_atomically
from c2v_sim.system.output import printed

NAME = "report.html"
MARK = '<meta name="generator" content="c2v_sim.report">'  # of page.html: a file that we wrote


def parser() -> argparse.ArgumentParser:
    text = "One self-contained HTML page about one run or many."
    out = argparse.ArgumentParser(prog="c2v_sim.report", description=text)
    out.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN_DIR", help="run directories, or folders of them"
    )
    out.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help=f"default: {NAME} in the run directory, of several runs ./{NAME}",
    )
    out.add_argument("--force", action="store_true", help="overwrite a file that is no report")
    return out


def make_report(paths: Sequence[Path], output: Path | None = None, *, force: bool = False) -> Path:
    """Write the report of the run directories in `paths`; where it is.

    ValueError: a path without runs, a damaged run, an output that must not be overwritten, or
    libraries that are not installed. Nothing is written then.
    """
    found = find_runs(paths)
    runs, unstarted = read_runs(found)
    if not runs:
        first = f"{unstarted[0].name}: {unstarted[0].failure}"
        raise ValueError(f"no run has begun, so there is nothing to show; failed: {first}")
    output = output or (found[0] / NAME if len(found) == 1 else Path(NAME))
    check_output(output, force)
    figures, bundle = drawing()
    groups = group_runs(runs, unstarted)
    page = fill_page(groups, document(groups) | {"figures": figures}, bundle)
    write_atomically(output, lambda p: p.write_text(page, encoding="utf-8"))
    return output


def check_output(output: Path, force: bool) -> None:
    """Refuse to overwrite what is not a report, and a folder that is not there."""
    if output.is_dir():
        raise ValueError(f"-o {output} is a directory; name a file in it")
    if not output.parent.is_dir():
        raise ValueError(f"-o {output}: the directory {output.parent} does not exist")
    if output.exists() and not force:
        with output.open("rb") as file:
            ours = MARK.encode() in file.read(1000)
        if not ours:
            raise ValueError(
                f"-o {output} exists and is not a report of c2v_sim; name another file, or --force"
            )


def drawing() -> tuple[PlainData, str]:
    """The figures' specifications and the JavaScript that draws them."""
    try:
        import vl_convert

        from c2v_sim.report.figures import specifications
    except ImportError as error:
        raise ValueError(
            f"a report needs the package {error.name}: pip install 'c2v_sim[report]'"
        ) from error
    bundle = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # wrong in its stub
    return specifications(), bundle


def fill_page(groups: Sequence[Group], data: PlainData, bundle: str) -> str:
    """The page with everything in it; each text is escaped for its place."""
    runs = [run for group in groups for run in group.everyone]
    names = sorted({str(group.facts["data"]) for group in groups if group.runs})
    what = groups[0].label if len(groups) == 1 else f"{len(groups)} experiments"
    count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    written = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    folder = resources.files("c2v_sim.report") / "page"
    parts = {
        "title": html.escape(f"{', '.join(names)}: {what}"),
        "subtitle": html.escape(f"{count}. Written by c2v_sim.report on {written}."),
        "style": (folder / "style.css").read_text(encoding="utf-8"),
        "figures": (folder / "figures.js").read_text(encoding="utf-8"),
        "script": (folder / "script.js").read_text(encoding="utf-8"),
        # In a script element only `<` can end it; JSON and JavaScript strings take it escaped.
        "data": json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        "bundle": re.sub(r"<(?=/script|script|!--)", r"\\x3c", bundle, flags=re.IGNORECASE),
    }
    page = (folder / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], page)


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit code."""
    arguments = parser().parse_args(argv)
    try:
        output = make_report(arguments.runs, arguments.output, force=arguments.force)
    except ValueError as error:
        return fail(2, str(error))
    except OSError as error:
        return fail(1, f"{error.filename}: {error.strerror}")
    text = f"report: {output} ({output.stat().st_size / 1e6:.2f} MB)"
    return printed(lambda: print(text), f"the report is written: {output}")


if __name__ == "__main__":
    sys.exit(main())
