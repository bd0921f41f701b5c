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
    original = { improve = [] }
    "glob_0.1" = { improve = ["sampling"], tau = 0.1 }

    [[skip]]                              # cells to leave out: those with all of these labels
    algorithm = "moon"
    case = "glob_0.1"

    [table]                               # optional: how the results are laid out (sweep/tables)
    paper = "tau_table"                   # the paper's values: an entry of paper_tables.toml, and
    reference = "paper/tau"               # the sweep of its settings: what differs is said
    rows = ["algorithm"]
    columns = "case"

A preset lets the client index improve something, as the run command does: there a cell with the
algorithm as it is says so, `original = { improve = [] }`. RunConfig's defaults improve nothing.

A base setting that some cells have no use for goes back to its default there; one that no cell
uses, or that an axis sets, is refused, as is everything else that the run command would refuse.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from c2v_sim.config import FIELDS, RunConfig, index_settings, make_config
from c2v_sim.run.files import JsonObject
from c2v_sim.run.presets import preset
from c2v_sim.run.reader import run_state
from c2v_sim.sweep.shipped import shipped_sweeps, shipped_text
from c2v_sim.sweep.tables.layout import Table, make_table
from c2v_sim.system.errors import ConfigError, naming
from c2v_sim.system.parse import parse_toml
from c2v_sim.system.settings import as_value

SWEEP = "sweep.toml"  # in the sweep's directory
MOST_CELLS = 100_000
SHAPES: dict[str, type] = {"title": str, "about": str, "preset": str, "base": dict, "axes": dict}
SHAPES |= {"skip": list, "table": dict}
KIND_NAMES: dict[type, str] = {str: "a text", dict: "a table", list: "a list of tables"}

Settings = Mapping[str, object]  # of a run, by name, as TOML has them
Axes = Mapping[str, Mapping[str, Settings]]  # axis -> label -> what it sets


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    name: str  # of its run directory: the labels joined by hyphens
    labels: dict[str, str]  # axis -> label
    config: RunConfig


@dataclass(frozen=True)
class Sweep:
    """A grid of runs, checked."""

    title: str
    about: str
    axes: dict[str, tuple[str, ...]]  # axis -> labels
    cells: tuple[Cell, ...]
    table: Table
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
    return run_state(cell_folder(out, cell))


def read_sweep(file: str | Path, settings: Settings | None = None) -> Sweep:
    """The sweep in `file`, a path or a shipped name (small/tau); `settings` go over its [base]."""
    text = sweep_text(file)
    try:
        content = parse_toml(text)
    except ValueError as error:
        raise ConfigError(f"{file} is not a TOML file: {error}") from error
    with naming(file):
        return make_sweep(content, text, settings or {})


def sweep_text(file: str | Path) -> str:
    """The text of a sweep file, or of the shipped sweep of that name."""
    if Path(file).is_file():
        try:
            return Path(file).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ConfigError(f"{file} is not a TOML file: {error}") from error
    text = shipped_text(str(file))
    if text is None:
        raise ConfigError(
            f"{file} is neither a file nor a shipped sweep; shipped: {', '.join(shipped_sweeps())}"
        )
    return text


def make_sweep(content: JsonObject, text: str, settings: Settings) -> Sweep:
    """The sweep that `content`, a parsed file, describes."""
    check_shapes(content)
    axes = {name: choices(name, values) for name, values in content.get("axes", {}).items()}
    if not axes:
        raise ConfigError("[axes] must name at least one axis, such as seed = [0, 1, 2]")
    labels = {name: tuple(of_axis) for name, of_axis in axes.items()}
    skipped = [checked_skip(pattern, labels) for pattern in content.get("skip", [])]
    base = {**content.get("base", {}), **settings}
    size = math.prod(map(len, labels.values()))
    if size > MOST_CELLS:
        raise ConfigError(f"the grid has {size:,} cells; more than {MOST_CELLS:,} are not meant")
    cells = []
    for combination in itertools.product(*labels.values()):
        chosen = dict(zip(labels, combination, strict=True))
        if not any(pattern.items() <= chosen.items() for pattern in skipped):
            cells.append(make_cell(chosen, axes, base, content.get("preset", "")))
    check_cells(cells)
    check_base(base, axes, cells)
    table = make_table(content.get("table"), labels)
    title, about = content.get("title", ""), content.get("about", "")
    return Sweep(title, about, labels, tuple(cells), table, text)


def check_shapes(content: Mapping[str, object]) -> None:
    """Refuse entries that a sweep file does not have, or of another kind."""
    unknown = [key for key in content if key not in SHAPES]
    if unknown:
        raise ConfigError(f"unknown entry {unknown[0]!r}; known: {', '.join(SHAPES)}")
    for key, kind in SHAPES.items():
        if not isinstance(content.get(key, kind()), kind):
            raise ConfigError(f"{key} must be {KIND_NAMES[kind]}, got {content[key]!r}")


def choices(name: str, values: object) -> Mapping[str, Settings]:
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


def checked_skip(pattern: object, labels: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    if not isinstance(pattern, dict) or not pattern:
        raise ConfigError(f"skip must be a table of axis = label, got {pattern!r}")
    named = {axis: str(label) for axis, label in pattern.items()}
    for axis, label in named.items():
        if label not in labels.get(axis, ()):
            raise ConfigError(f"skip: there is no {axis} = {label}")
    return named


def make_cell(labels: dict[str, str], axes: Axes, base: Settings, base_preset: str) -> Cell:
    own: dict[str, object] = {}
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


def check_base(base: Settings, axes: Axes, cells: list[Cell]) -> None:
    """Refuse base settings (or --set) that an axis always overrides, or that no cell uses."""
    for key, value in base.items():
        setting = f"[base] {key} = {value} has no effect in any cell"
        for axis, of_axis in axes.items():
            if all(key in choice for choice in of_axis.values()):
                raise ConfigError(f"{setting}: axis {axis} sets it; --only chooses among cells")
        if all(getattr(cell.config, key) != as_value(FIELDS[key], value) for cell in cells):
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
