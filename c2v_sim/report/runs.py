"""Paths → the runs of a report: run directories, and cells that failed before they had one.

A folder stands for all run directories inside it, such as those of a sweep. Each run gets a name
that no other has.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from c2v_sim.run.files import CONFIG, MANIFEST, JsonObject
from c2v_sim.run.reader import (
    ENDING,
    Run,
    failure_file,
    failure_reason,
    has_begun,
    read_run,
    read_settings,
)
from c2v_sim.system.errors import remedy

ENCODER_STAND_INS = ("builtin", "pretrained-lite")  # the paper's is CLIP


@dataclass(frozen=True, eq=False)
class Unstarted:
    """A cell of a sweep that failed before it had a run directory."""

    name: str
    config: JsonObject
    failure: str
    state: str = "failed"


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The run directories among `paths` and inside them, and those that failed cells lack.

    A path without either is refused.
    """
    found: list[Path] = []
    for path in paths:
        closed: list[OSError] = []  # folders that cannot be read
        folders = list(_walk(path, closed.append))
        inside = [folder for folder, _ in folders if has_begun(folder)]
        inside += [cell for folder, files in folders for cell in _unstarted(folder, files)]
        _tell_of(closed, refuse=not inside)
        if not inside and failure_file(path).is_file():
            inside = [path]
        if not inside:
            why = "it holds no run directory" if path.is_dir() else "there is no such directory"
            raise ValueError(
                f"{path} is not a run directory: {why} (a run directory has {CONFIG} and "
                f"{MANIFEST})"
            )
        known = {f.resolve() for f in found}
        found += [run for run in sorted(inside) if run.resolve() not in known]
    return found


def _tell_of(closed: Sequence[OSError], refuse: bool) -> None:
    """Folders that are there and cannot be read: a warning, or the reason to find nothing."""
    absent = (FileNotFoundError, NotADirectoryError)
    for error in (e for e in closed if not isinstance(e, absent)):
        what = f"{error.filename} cannot be read: {error.strerror}{remedy(error, before='; ')}"
        if refuse:
            raise ValueError(what)
        print(f"warning: {what}", file=sys.stderr)


def _walk(path: Path, on_error: Callable[[OSError], None]) -> Iterator[tuple[Path, list[str]]]:
    """Folders and the names of their files; not what is inside run directories or is hidden."""
    for folder, inside, files in os.walk(path, onerror=on_error):
        yield Path(folder), files
        inside[:] = [] if has_begun(Path(folder)) else [name for name in inside if name[0] != "."]


def _unstarted(folder: Path, files: list[str]) -> list[Path]:
    """Where the run directories of failed cells would be; a sweep leaves their settings too."""
    names = [name.removesuffix(ENDING) for name in files if name.endswith(ENDING)]
    cells = [folder / name for name in names if f"{name}.toml" in files]
    return [cell for cell in cells if not has_begun(cell)]


def read_runs(paths: Sequence[Path]) -> tuple[list[Run], list[Unstarted]]:
    """Read run directories; their names are the ends of their paths that tell them apart."""
    resolved = [path.resolve() for path in paths]
    depth = 1
    while len({p.parts[-depth:] for p in resolved}) < len(resolved):
        depth += 1
    names = ["/".join(p.parts[-depth:]) for p in resolved]
    named = list(zip(paths, names, strict=True))
    runs = [read_run(path, name) for path, name in named if has_begun(path)]
    return runs, [read_unstarted(path, name) for path, name in named if not has_begun(path)]


def read_unstarted(path: Path, name: str) -> Unstarted:
    """The cell whose run directory would be `path`: its settings and its failure are beside it."""
    settings = read_settings(path.with_name(f"{path.name}.toml"))
    return Unstarted(name, settings, failure_reason(failure_file(path)))


def standins(runs: Sequence[Run], total: int) -> list[str]:
    """A sentence for every stand-in that took the place of data or of the paper's encoder; `total`
    counts runs that did not begin as well."""

    def of_runs(chosen: list[Run]) -> str:
        return "this run" if total == 1 else f"{len(chosen)} of {total} runs"

    out = []
    data = {(r.manifest["data"]["name"], r.manifest["data"].get("stand_in_for")) for r in runs}
    for name, real in sorted((n, r) for n, r in data if r):
        those = of_runs([r for r in runs if r.manifest["data"]["name"] == name])
        out.append(
            f"Stand-in data: {those} trained on {name}, not on {real}. The numbers say nothing "
            f"about {real}."
        )
    for encoder in ENCODER_STAND_INS:
        chosen = [run for run in runs if run.encoder == encoder]
        if chosen:
            out.append(
                f"Stand-in encoder: the client index of {of_runs(chosen)} was built with the "
                f"{encoder} encoder in place of the paper's CLIP."
            )
    return out
