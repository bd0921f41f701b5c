"""Run directories as the report needs them: paths → `Run`s.

A run directory is one with config.toml and manifest.json. What a run that is still going (or was
stopped) does not have yet is None; a file that is there and cannot be read is an error. A cell of
a sweep that failed before it had a run directory is `Unstarted`.
"""

import json
import os
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from c2v_sim.data.partition import Partition
from c2v_sim.index.client_index import ClientIndex
from c2v_sim.run import files as run_directory
from c2v_sim.run.failures import ENDING, failure_file, failure_reason
from c2v_sim.simulator.records import Result, RoundRecord
from c2v_sim.system.archive import read_npz

ENCODER_STAND_INS = ("builtin", "pretrained-lite")  # the paper's is CLIP


@dataclass(frozen=True, eq=False)
class Clients:
    """Who the clients are; `label_counts` is None where the run directory does not say."""

    sizes: np.ndarray  # [M] training samples
    test_sizes: np.ndarray  # [M]
    label_counts: np.ndarray | None  # [M, K]
    domains: np.ndarray | None  # [M]


@dataclass(frozen=True, eq=False)
class Run:
    """One run directory."""

    path: Path
    name: str  # unique in a report
    config: dict[str, Any]
    manifest: dict[str, Any]
    records: list[RoundRecord]
    result: dict[str, Any] | None  # None: unfinished
    clients: Clients
    index: ClientIndex | None
    failure: str = ""  # why a sweep gave it up

    @property
    def evaluated(self) -> list[RoundRecord]:
        return Result(self.records).evaluated

    @property
    def seconds(self) -> float:
        return sum(sum(r.seconds.values()) for r in self.records)

    @property
    def state(self) -> str:
        """done, failed or unfinished; failed wins, as in the tables of a sweep."""
        return "failed" if self.failure else "done" if self.result else "unfinished"

    @property
    def rounds(self) -> str:
        """In words: all of them, or how many of how many."""
        done = len(self.records)
        return str(done) if self.result else f"{done} of {self.config.get('rounds', 0)}"

    @property
    def encoder(self) -> str | None:
        return self.manifest.get("encoder")


@dataclass(frozen=True, eq=False)
class Unstarted:
    """A cell of a sweep that failed before it had a run directory."""

    name: str  # unique in a report
    config: dict[str, Any]
    failure: str
    state: str = "failed"


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The run directories among `paths` and inside them, and those that failed cells lack.

    A path without either is refused.
    """
    found: list[Path] = []
    for path in paths:
        inside = [Path(at) for at, _, files in _walk(path) if _is_run(files)]
        inside += [p for at, _, files in _walk(path) for p in _unstarted(Path(at), files)]
        if not inside and failure_file(path).is_file():
            inside = [path]
        if not inside:
            why = "it holds no run directory" if path.is_dir() else "there is no such directory"
            raise ValueError(
                f"{path} is not a run directory: {why} (a run directory has "
                f"{run_directory.CONFIG} and {run_directory.MANIFEST})"
            )
        known = {f.resolve() for f in found}
        found += [run for run in sorted(inside) if run.resolve() not in known]
    return found


def _is_run(files: Iterable[str]) -> bool:
    return {run_directory.CONFIG, run_directory.MANIFEST} <= set(files)


def has_begun(path: Path) -> bool:
    return path.is_dir() and _is_run(os.listdir(path))


def _unstarted(folder: Path, files: list[str]) -> list[Path]:
    """Where the run directories of failed cells would be; a sweep leaves their settings too."""
    names = [name.removesuffix(ENDING) for name in files if name.endswith(ENDING)]
    cells = [folder / name for name in names if f"{name}.toml" in files]
    return [cell for cell in cells if not has_begun(cell)]


def _walk(path: Path):
    """os.walk in order of names; not into run directories, nor into hidden or half-made ones."""
    for at, folders, files in os.walk(path):
        folders[:] = [] if _is_run(files) else sorted(f for f in folders if f[0] != ".")
        yield at, folders, files


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
    settings = path.with_name(f"{path.name}.toml")
    try:
        config = tomllib.loads(settings.read_text())
    except ValueError as error:
        raise ValueError(f"{settings}: cannot be read: {error}") from error
    return Unstarted(name, config, failure_reason(failure_file(path)))


def read_run(path: Path, name: str) -> Run:
    """One run directory; ValueError names a file that cannot be read."""
    try:
        config = tomllib.loads((path / run_directory.CONFIG).read_text())
        manifest = json.loads((path / run_directory.MANIFEST).read_text())
        done = path / run_directory.RESULT
        result = json.loads(done.read_text()) if done.exists() else None
    except ValueError as error:  # TOML, JSON and text that is no UTF-8
        raise ValueError(f"{path}: a file of the run cannot be read: {error}") from error
    for section in ("data", "partition", "model"):
        if not isinstance(manifest.get(section), dict):
            raise ValueError(f"{path / run_directory.MANIFEST}: {section!r} is missing")
    file = path / run_directory.INDEX
    index = ClientIndex.load(file) if file.exists() else None
    records, clients = read_rounds(path / run_directory.ROUNDS), read_clients(path, index)
    failed = failure_file(path)
    failure = failure_reason(failed) if failed.exists() else ""
    return Run(path, name, config, manifest, records, result, clients, index, failure)


def read_rounds(file: Path) -> list[RoundRecord]:
    """The records of finished rounds; a last line that was cut off is left out."""
    if not file.exists():
        return []
    records = []
    lines = file.read_bytes().splitlines()
    for number, line in enumerate(lines, 1):
        try:
            records += run_directory.parse_rounds([line])
        except (ValueError, TypeError) as error:
            if number < len(lines):
                raise ValueError(f"{file}, line {number}: not a round's record: {error}") from error
    return records


def read_clients(path: Path, index: ClientIndex | None) -> Clients:
    """What each client holds, from clients.npz; an older run has the partition and the index."""
    file = path / run_directory.CLIENTS
    if not file.exists():
        partition = Partition.load(path / run_directory.PARTITION)
        tests = np.array([len(ids) for ids in partition.test])
        counts = None if index is None else index.label_counts.numpy()
        domains = None if partition.domains is None else np.array(partition.domains)
        return Clients(partition.sizes, tests, counts, domains)
    try:
        arrays = read_npz(file, ("label_counts", "domains", "test_sizes"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: cannot be read ({error})") from error
    counts, domains = arrays["label_counts"], arrays["domains"]
    return Clients(counts.sum(1), arrays["test_sizes"], counts, domains if len(domains) else None)


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
