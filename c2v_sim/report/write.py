"""Run directories -> the page of a report: one HTML file that needs nothing else."""

import html
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from c2v_sim.report.clients import PlainData
from c2v_sim.report.gains import gain_text, gains
from c2v_sim.report.groups import Group, group_runs, seed_of
from c2v_sim.report.page_data import document
from c2v_sim.report.runs import find_runs, read_runs
from c2v_sim.system.files import write_atomically

NAME = "report.html"
MARK = '<meta name="generator" content="c2v_sim.report">'  # of page.html: a file that we wrote


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
    count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    written = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    folder = resources.files("c2v_sim.report") / "page"
    parts = {
        "title": html.escape(title(groups)),
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


def title(groups: Sequence[Group]) -> str:
    """`shapes, cnn: fedavg and fedavg + Client2Vec, seed 0: gain +1.7 points`."""
    names = sorted({str(group.facts["data"]) for group in groups if group.runs})
    models = sorted({str(group.facts.get("model")) for group in groups})
    seeds = sorted({seed_of(run) for group in groups for run in group.everyone})
    what = " and ".join(group.label for group in groups)
    what = what if len(groups) <= 2 else f"{len(groups)} experiments"
    listed = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    gained = [values for group in groups if (values := gains(group, groups))]
    gain = f": gain {gain_text(gained[0])} points" if len(gained) == 1 and len(groups) == 2 else ""
    return f"{', '.join(names)}, {', '.join(models)}: {what}, {listed}{gain}"
