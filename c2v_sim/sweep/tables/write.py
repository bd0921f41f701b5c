"""The tables of a sweep: what its cells came to → table.md, table.csv and table.json.

table.md is to be read, table.csv has one line per place of the table, table.json the same and the
sentences below the table. Every place shows mean ± population std over seeds, the paper's value
and the difference, and the gain over the column `original`, seed by seed; a cell that failed or
did not run is shown as such.
"""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

from c2v_sim.run.files import JsonObject, write_text
from c2v_sim.sweep.file import Sweep
from c2v_sim.sweep.tables import models
from c2v_sim.sweep.tables.deviations import (
    Comparison,
    compare,
    headline,
    origins,
    progress,
    sentences,
)
from c2v_sim.sweep.tables.results import (
    QUALITY,
    TIMES,
    CellRun,
    Entry,
    make_entries,
    mean,
    read_cells,
    spread,
)
from c2v_sim.sweep.tables.times import time_taken

FILES = ("table.md", "table.csv", "table.json")
MINUS = "\N{MINUS SIGN}"
SELECTION = {
    "accuracy": "Each value is the best over rounds of the mean test accuracy over clients in %; "
    "± is the population standard deviation over seeds. Later half: the mean of the later half of "
    "the evaluations, which depends less on chance than the best.",
    "time": "Seconds of all four stages of the rounds, evaluation included; the index is made once "
    "per seed, and one from the cache counts what it took when it was built. FedAvg's best is the "
    "best over rounds. Cells that ran side by side slowed one another: --jobs 1 avoids it.",
    "index": "Mean cosine of β^f of clients of one domain (within) and of two (between), "
    "silhouette of the domains, and Spearman's correlation of the label part with the clients' "
    "labels; best accuracy is the best over rounds in %.",
}
# How the paper's values came about, where they stand beside ours.
OF_THE_PAPER = {
    "accuracy": "The paper reports the best over rounds too, and chose τ, γ, μ, b and e by it; "
    "here each cell has those of its settings.",
    "time": "The paper's seconds are those of one RTX 3090 and of its own code: differences from "
    "them say nothing about speed here. It counts FedAvg's whole training as the way to its best; "
    "here that ends with the best round.",
}


def write_tables(sweep: Sweep, out: Path) -> str:
    """Write table.md, table.csv and table.json into `out`; the Markdown."""
    runs = read_cells(sweep, out)
    entries, comparisons = make_entries(sweep, runs), compare(sweep, runs)
    notes = make_notes(sweep, runs, comparisons)
    records = [record(entry, comparisons) for entry in entries]
    facts = {
        "title": sweep.title,
        "about": sweep.about,
        "kind": sweep.table.kind,
        "paper": sweep.table.paper,
        "reference": sweep.table.reference,
        "deviates": bool(headline(comparisons)),
        "notes": notes,
        "places": records,
    }
    markdown = to_markdown(sweep, entries, notes)
    texts = (markdown, to_csv(records), json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
    for name, text in zip(FILES, texts, strict=True):
        write_text(out / name, text)
    return markdown


def make_notes(sweep: Sweep, runs: list[CellRun], comparisons: list[Comparison]) -> list[str]:
    """The sentences below the table; the first one says that this is not the paper's."""
    table, first = sweep.table, headline(comparisons)
    notes = [f"**{first}.**"] if first else []
    notes += sentences(sweep, runs, comparisons)
    if not table.reference:
        notes.append("The sweep names no reference, so its settings were not compared.")
    elif not first:
        notes.append("Nothing that was compared deviates from the paper's settings.")
    notes.append(SELECTION[table.kind])
    if table.paper and table.kind in OF_THE_PAPER:
        notes.append(OF_THE_PAPER[table.kind])
    return [*notes, *time_taken(runs), *progress(runs), *origins(runs)]


def record(entry: Entry, comparisons: list[Comparison]) -> JsonObject:
    """One place of the table as plain data."""
    cells = {run.cell.name for run in entry.runs}
    odd = dict.fromkeys(str(c) for c in comparisons if c.deviates and c.cell in cells)
    data = dict.fromkeys(run.manifest["data"]["name"] for run in entry.runs if run.manifest)
    return {
        "row": entry.rows,
        "column": entry.column,
        "seeds": len(entry.runs),
        "values": entry.values,
        "missing": entry.missing,
        "mean": entry.mean,
        "std": entry.std,
        "paper_mean": entry.paper_mean,
        "paper_std": entry.paper_std,
        "difference": entry.difference,
        "gain": entry.gain,
        "gain_std": entry.gain_std,
        "paper_gain": entry.paper_gain,
        "late": mean(entry.late.values()),
        "late_std": spread(entry.late.values()),
        "late_gain": mean(entry.late_gains.values()),
        "late_gain_std": spread(entry.late_gains.values()),
        "data": list(data),
        "deviations": list(odd),
    }


def to_csv(records: list[JsonObject]) -> str:
    """The records, a line each; a column for every row axis and for every other entry."""
    file = io.StringIO()
    axes = list(records[0]["row"])
    names = [name for name in records[0] if name != "row"]
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*axes, *names])
    for of_place in records:
        writer.writerow([*of_place["row"].values(), *(flat(of_place[name]) for name in names)])
    return file.getvalue()


def flat(value: object) -> object:
    """A value as one field of a CSV file: `0=41.2; 1=40.9`, `rounds 20 (paper: 100); …`."""
    if isinstance(value, dict):
        return "; ".join(f"{key}={item}" for key, item in value.items())
    return "; ".join(value) if isinstance(value, list) else value


def to_markdown(sweep: Sweep, entries: list[Entry], notes: list[str]) -> str:
    """Title, table and sentences."""
    axes, columns = sweep.table.rows, list(dict.fromkeys(e.column for e in entries))
    shown = [(name, text) for name, text in LINES.items() if any(map(text, entries))]
    lines = [line_of([*axes, "", *columns]), "|" + "---|" * (len(axes) + 1 + len(columns))]
    for start in range(0, len(entries), len(columns)):
        of_row = entries[start : start + len(columns)]
        for name, text in shown:
            lines.append(line_of([*of_row[0].rows.values(), name, *map(text, of_row)]))
    warning = [notes[0], ""] if notes[0].startswith("**") else []
    about = [" ".join(sweep.about.split()), ""] if sweep.about else []
    title = sweep.title or "Sweep"
    below = [f"- {note}" for note in notes]
    return "\n".join([f"# {title}", "", *about, *warning, *lines, "", *below]) + "\n"


def line_of(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def here_text(entry: Entry) -> str:
    """`41.20 ± 0.50 (2 of 3 seeds; 1 failed)`; without any value only what became of the cells."""
    if not entry.runs:
        return "–"
    reasons = list(dict.fromkeys(entry.missing.values()))
    if not entry.values:
        return ", ".join(reasons)
    text = number(entry.column, entry.mean, entry.std)
    if not entry.missing:
        return text
    counted = [f"{list(entry.missing.values()).count(reason)} {reason}" for reason in reasons]
    return f"{text} ({len(entry.values)} of {len(entry.runs)} seeds; {', '.join(counted)})"


def of_seeds(entry: Entry, values: dict[str, float], sign: bool = False) -> str:
    """Mean and deviation of `values` by seed, and of how many seeds where some are missing."""
    text = number(entry.column, mean(values.values()), spread(values.values()), sign)
    fewer = 0 < len(values) < len(entry.runs)
    return f"{text} ({len(values)} of {len(entry.runs)} seeds)" if fewer else text


# The lines of a row; one that is empty in the whole table is left out.
LINES: dict[str, Callable[[Entry], str]] = {
    "here": here_text,
    "paper": lambda e: number(e.column, e.paper_mean, e.paper_std),
    "difference": lambda e: number(e.column, e.difference, sign=True),
    "gain here": lambda e: of_seeds(e, e.gains, sign=True),
    "gain, paper": lambda e: number(e.column, e.paper_gain, sign=True),
    "later half": lambda e: of_seeds(e, e.late),
    "gain, later half": lambda e: of_seeds(e, e.late_gains, sign=True),
}


def of_models(value: models.Value) -> Callable[[Entry], str]:
    return lambda entry: number(entry.column, *value(entry))


LINES |= {name: of_models(value) for name, value in models.LINES.items()}


def number(column: str, value: float | None, std: float | None = None, sign: bool = False) -> str:
    """`41.20 ± 0.50`, with as many places as the column deserves; empty without a value."""
    if value is None:
        return ""
    places = 1 if column in TIMES else 3 if column in QUALITY else 2
    text = f"{value:{'+' if sign else ''}.{places}f}".replace("-", MINUS)
    return text if std is None else f"{text} ± {std:.{places}f}"
