"""The [table] of a sweep file: which axes are rows and columns, and which values of the paper go
beside them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from c2v_sim.sweep.shipped import shipped_sweeps
from c2v_sim.sweep.tables.paper import paper_entry, paper_names
from c2v_sim.system.errors import ConfigError

SEEDS = "seed"  # the axis that a table averages over
KINDS = ("accuracy", "time", "index")
SHAPES = {"rows": list, "columns": str, "kind": str, "paper": str, "reference": str}

Labels = Mapping[str, tuple[str, ...]]  # axis -> its labels


@dataclass(frozen=True)
class Table:
    """How the cells are laid out, and the paper's values beside them."""

    rows: tuple[str, ...]  # axes
    columns: str = ""  # an axis; empty where the kind has its own columns
    kind: str = "accuracy"  # one of KINDS
    paper: str = ""  # an entry of paper_tables.toml, with dots; empty: the paper has none
    reference: str = ""  # the shipped sweep at the paper's scale; what differs from it is said


def make_table(given: Mapping[str, object] | None, labels: Labels) -> Table:
    """The layout that a file asks for; where it does not say: a row for every choice."""
    if given is None:
        return Table(rows=tuple(axis for axis in labels if axis != SEEDS))
    for key, value in given.items():
        if key not in SHAPES:
            raise ConfigError(f"[table] may have {', '.join(SHAPES)}; got {key}")
        if not isinstance(value, SHAPES[key]):
            wanted = "a list of axes" if key == "rows" else "a text"
            raise ConfigError(f"[table] {key} must be {wanted}, got {value!r}")
    texts = {key: str(value) for key, value in given.items() if key != "rows"}
    rows = given.get("rows", ())
    assert isinstance(rows, list | tuple)
    table = Table(rows=tuple(rows), **texts)
    check_axes(table, labels)
    check_paper(table)
    return table


def check_axes(table: Table, labels: Labels) -> None:
    """Refuse rows and columns that are no axes, and axes that would be averaged unseen."""
    if table.kind not in KINDS:
        raise ConfigError(f"[table] kind must be one of {', '.join(KINDS)}; got {table.kind!r}")
    own_columns = table.kind != "accuracy"
    if own_columns and table.columns:
        raise ConfigError(
            f"[table] of kind {table.kind} has its own columns; leave out {table.columns!r}"
        )
    for axis in table.rows if own_columns else (*table.rows, table.columns):
        if not isinstance(axis, str) or axis not in labels:
            raise ConfigError(f"[table] rows and columns must name axes, got {axis!r}")
    placed = {*table.rows, table.columns, SEEDS}
    left = [axis for axis, of_axis in labels.items() if axis not in placed and len(of_axis) > 1]
    if left:
        raise ConfigError(f"[table] has no place for axis {left[0]}: only seeds are averaged")


def check_paper(table: Table) -> None:
    """Refuse values of the paper that are not there, or without what their settings were."""
    paper, reference = table.paper, table.reference
    if paper and not isinstance(paper_entry(paper.split(".")), dict):
        known = ", ".join(paper_names())
        raise ConfigError(f"[table] paper = {paper!r} is no table of the paper; known: {known}")
    if paper and not reference:
        raise ConfigError(
            f"[table] paper = {paper!r} needs reference, the sweep with the paper's settings "
            "(such as paper/tau), so that what differs from them can be said"
        )
    if reference and reference not in shipped_sweeps() and not Path(reference).is_file():
        raise ConfigError(
            f"[table] reference = {reference!r} is neither a file nor a shipped sweep; shipped: "
            f"{', '.join(shipped_sweeps())}"
        )
