"""A sweep file: a grid of runs, as TOML.

    title = "Sampling temperature on CIFAR10"
    about = "Case study i alone, four temperatures, both strategies."
    preset = "paper"                      # what [base] changes; without it: RunConfig's defaults

    [base]                                # settings of every cell: any field of RunConfig
    index_encoder = "clip"

    [axes]                                # the grid is their product, the last one varies fastest
    algorithm = ["fedavg", "moon"]        # a field and its values ...
    seed = [0, 1, 2]

    [axes.case]                           # ... or choices with names, each some settings
    original = {}
    "glob_0.1" = { improve = ["sampling"], tau = 0.1 }

    [[skip]]                              # cells to leave out: those with all of these labels
    algorithm = "moon"
    case = "glob_0.1"

    [table]                               # optional: how the results are laid out (sweep/tables)
    paper = "tau_table"                   # the paper's values: an entry of paper_tables.toml, and
    reference = "paper/tau"               # the sweep of its settings: what differs is said
    rows = ["algorithm"]
    columns = "case"

A base setting that some cells have no use for goes back to its default there; one that no cell
uses, or that an axis sets, is refused, as is everything else that the run command would refuse.
"""

import itertools
import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from c2v_sim.config import FIELDS, RunConfig, index_settings, make_config
from c2v_sim.run.failures import failure_file
from c2v_sim.run.files import CONFIG, RESULT
from c2v_sim.run.presets import preset
from c2v_sim.sweep.tables.paper import paper_entry, paper_names
from c2v_sim.system.errors import ConfigError

SHAPES: dict[str, type] = {"title": str, "about": str, "preset": str, "base": dict, "axes": dict}
SHAPES |= {"skip": list, "table": dict}
KIND_NAMES: dict[type, str] = {str: "a text", dict: "a table", list: "a list of tables"}
SEEDS = "seed"  # the axis that a table averages over
TABLE_KINDS = ("accuracy", "time", "index")
TABLE_SHAPES = {"rows": list, "columns": str, "kind": str, "paper": str, "reference": str}


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    name: str  # of its run directory: the labels joined by hyphens
    labels: dict[str, str]  # axis -> label
    config: RunConfig


@dataclass(frozen=True)
class Table:
    """How the cells are laid out, and the paper's values beside them."""

    rows: tuple[str, ...]  # axes
    columns: str  # an axis; empty where the kind has its own columns
    kind: str  # one of TABLE_KINDS
    paper: str  # an entry of paper_tables.toml, with dots; empty: the paper has none
    reference: str  # the shipped sweep at the paper's scale; what differs from it is said


@dataclass(frozen=True)
class Sweep:
    """A grid of runs, checked."""

    title: str
    about: str
    axes: dict[str, tuple[str, ...]]  # axis -> labels
    cells: tuple[Cell, ...]
    table: Table | None
    text: str  # the file


def cell_folder(out: Path, cell: Cell) -> Path:
    """The run directory of a cell in the sweep's directory `out`."""
    return out / "cells" / cell.name


def beside(out: Path, cell: Cell, ending: str) -> Path:
    """A file beside the cell's run directory: NAME.toml, NAME.log."""
    folder = cell_folder(out, cell)
    return folder.with_name(f"{folder.name}.{ending}")


def state(out: Path, cell: Cell) -> str:
    """done, failed, unfinished or new."""
    if failure_file(cell_folder(out, cell)).exists():
        return "failed"
    folder = cell_folder(out, cell)
    if (folder / RESULT).exists():
        return "done"
    return "unfinished" if (folder / CONFIG).exists() else "new"


def read_sweep(file: str | Path, settings: Mapping[str, Any] | None = None) -> Sweep:
    """The sweep in `file`, a path or a shipped name (small/tau); `settings` go over its [base]."""
    text = sweep_text(file)
    try:
        content = tomllib.loads(text)
        return make_sweep(content, text, settings or {})
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not a TOML file: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def sweep_text(file: str | Path) -> str:
    """The text of a sweep file, or of the shipped sweep of that name."""
    if Path(file).is_file():
        try:
            return Path(file).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{file} is not a TOML file: {error}") from error
    named = resources.files("c2v_sim.sweep.shipped").joinpath(
        f"{str(file).removesuffix('.toml')}.toml"
    )
    if named.is_file():
        return named.read_text()
    raise ConfigError(
        f"{file} is neither a file nor a shipped sweep; shipped: {', '.join(shipped_sweeps())}"
    )


def shipped_sweeps() -> list[str]:
    """The names of the sweeps that come with the package."""
    root = resources.files("c2v_sim.sweep.shipped")
    scales = [folder for folder in root.iterdir() if folder.is_dir()]
    files = [(scale.name, file.name) for scale in scales for file in scale.iterdir()]
    return sorted(f"{s}/{f.removesuffix('.toml')}" for s, f in files if f.endswith(".toml"))


def make_sweep(content: Mapping[str, Any], text: str, settings: Mapping[str, Any]) -> Sweep:
    """The sweep that `content`, a parsed file, describes."""
    unknown = [key for key in content if key not in SHAPES]
    if unknown:
        raise ConfigError(f"unknown entry {unknown[0]!r}; known: {', '.join(SHAPES)}")
    for key, kind in SHAPES.items():
        if not isinstance(content.get(key, kind()), kind):
            raise ConfigError(f"{key} must be {KIND_NAMES[kind]}, got {content[key]!r}")
    axes = {name: choices(name, values) for name, values in content.get("axes", {}).items()}
    if not axes:
        raise ConfigError("[axes] must name at least one axis, such as seed = [0, 1, 2]")
    labels = {name: tuple(of_axis) for name, of_axis in axes.items()}
    skipped = [checked_skip(pattern, labels) for pattern in content.get("skip", [])]
    base = {**content.get("base", {}), **settings}
    cells = []
    for combination in itertools.product(*labels.values()):
        chosen = dict(zip(labels, combination, strict=True))
        if not any(pattern.items() <= chosen.items() for pattern in skipped):
            cells.append(make_cell(chosen, axes, base, content.get("preset", "")))
    check_cells(cells)
    check_base(base, axes, cells)
    table = make_table(content["table"], labels) if "table" in content else None
    about = content.get("about", "")
    return Sweep(content.get("title", ""), about, labels, tuple(cells), table, text)


def choices(name: str, values: Any) -> dict[str, dict[str, Any]]:
    """The labels of an axis, and the settings that each stands for."""
    if isinstance(values, list) and values:
        if name not in FIELDS:
            raise ConfigError(
                f"axis {name!r} is a list, so it must be a setting of a run; an axis of several "
                f"settings is a table [axes.{name}] of named choices"
            )
        named = {str(value): {name: value} for value in values}
        if len(named) == len(values):
            return named
    elif isinstance(values, dict) and values and all(isinstance(v, dict) for v in values.values()):
        return values
    raise ConfigError(f"axis {name!r} must be a list of different values or a table of choices")


def checked_skip(pattern: Any, labels: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    if not isinstance(pattern, dict) or not pattern:
        raise ConfigError(f"skip must be a table of axis = label, got {pattern!r}")
    named = {axis: str(label) for axis, label in pattern.items()}
    for axis, label in named.items():
        if label not in labels.get(axis, ()):
            raise ConfigError(f"skip: there is no {axis} = {label}")
    return named


def make_cell(
    labels: dict[str, str],
    axes: Mapping[str, dict[str, dict[str, Any]]],
    base: Mapping[str, Any],
    base_preset: str,
) -> Cell:
    own: dict[str, Any] = {}
    for axis, label in labels.items():
        twice = own.keys() & axes[axis][label].keys()
        if twice:
            raise ConfigError(f"two axes set {sorted(twice)[0]}, the second is {axis} = {label}")
        own |= axes[axis][label]
    name = re.sub(r"[^\w.+=-]", "_", "-".join(labels.values())).lstrip(".-")
    start = preset(base_preset) if base_preset else RunConfig()
    try:
        config = make_config({**base, **own}, start, shared=base.keys() - own.keys())
        if config.needs_client_index and not config.index_file:
            index_settings(config)  # which refuses some settings of its own
    except ConfigError as error:
        raise ConfigError(f"cell {name}: {error}") from error
    return Cell(name, labels, config)


def check_base(
    base: Mapping[str, Any], axes: Mapping[str, dict[str, dict[str, Any]]], cells: list[Cell]
) -> None:
    """Refuse base settings (or --set) that an axis always overrides, or that no cell uses."""
    for key, value in base.items():
        setting = f"[base] {key} = {value} has no effect in any cell"
        for axis, of_axis in axes.items():
            if all(key in choice for choice in of_axis.values()):
                raise ConfigError(f"{setting}: axis {axis} sets it; --only chooses among cells")
        given = tuple(value) if isinstance(value, list) else value
        if all(getattr(cell.config, key) != given for cell in cells):
            raise ConfigError(f"{setting}: no cell has a use for it")


def check_cells(cells: list[Cell]) -> None:
    """Refuse an empty grid, and cells that are one run."""
    if not cells:
        raise ConfigError("every cell of the grid is skipped")
    first: dict[RunConfig, str] = {}
    for cell in cells:
        other = first.setdefault(cell.config, cell.name)
        if other != cell.name:
            raise ConfigError(f"cells {other} and {cell.name} have the same settings")
    name, count = Counter(cell.name for cell in cells).most_common(1)[0]
    if count > 1:
        raise ConfigError(f"{count} cells are called {name}; give their choices other names")


def make_table(given: dict[str, Any], labels: Mapping[str, tuple[str, ...]]) -> Table:
    for key, value in given.items():
        if key not in TABLE_SHAPES:
            raise ConfigError(f"[table] may have {', '.join(TABLE_SHAPES)}; got {key}")
        if not isinstance(value, TABLE_SHAPES[key]):
            wanted = "a list of axes" if key == "rows" else "a text"
            raise ConfigError(f"[table] {key} must be {wanted}, got {value!r}")
    rows, columns = tuple(given.get("rows", ())), given.get("columns", "")
    kind = given.get("kind", "accuracy")
    if kind not in TABLE_KINDS:
        raise ConfigError(f"[table] kind must be one of {', '.join(TABLE_KINDS)}; got {kind!r}")
    if kind != "accuracy" and columns:
        raise ConfigError(f"[table] of kind {kind} has its own columns; leave out {columns!r}")
    for axis in (*rows, columns) if kind == "accuracy" else rows:
        if axis not in labels:
            raise ConfigError(f"[table] rows and columns must name axes, got {axis!r}")
    shown = {*rows, columns, SEEDS}
    left = [axis for axis, of_axis in labels.items() if axis not in shown and len(of_axis) > 1]
    if left:
        raise ConfigError(f"[table] has no place for axis {left[0]}: only seeds are averaged")
    paper, reference = given.get("paper", ""), given.get("reference", "")
    check_paper(paper, reference)
    return Table(rows, columns, kind=kind, paper=paper, reference=reference)


def check_paper(paper: str, reference: str) -> None:
    """Refuse values of the paper that are not there, or without what their settings were."""
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
