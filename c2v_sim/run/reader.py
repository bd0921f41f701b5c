"""A run directory read back: path → `Run`. Reports and tables begin here.

A run directory is one with config.toml and manifest.json. What a run that is still going (or was
stopped) does not have yet is None; a file that is there and cannot be read is a ValueError.
Records, clients and index are read when they are first asked for.

NAME.failed beside a run directory NAME: a sweep gave up on this cell. The sweep writes it with the
command, the exit code and the end of the log, and removes it when it tries the cell again. Where
the cell failed before it began, for lack of an index for example, there is no NAME.
"""

import signal
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from c2v_sim.config import FIELDS
from c2v_sim.data.partition import Partition
from c2v_sim.index.client_index import ClientIndex
from c2v_sim.run import files as run_directory
from c2v_sim.run.files import JsonObject, read_json
from c2v_sim.simulator.cost import Cost, cost_of
from c2v_sim.simulator.records import Result, RoundRecord
from c2v_sim.system.archive import read_npz
from c2v_sim.system.errors import ERROR
from c2v_sim.system.parse import is_a, parse_toml
from c2v_sim.system.settings import as_value, check_type

ENDING = ".failed"
Kinds = dict[str, Any]  # where a value stands in a JSON file -> its type (system/parse.py)
MANIFEST_KINDS: Kinds = {
    "data": dict[str, Any],
    "data.name": str,
    "data.stand_in_for": str | None,
    "data.classes": list[str] | None,
    "data.domains": list[str] | None,
    "partition": dict[str, Any],
    "partition.convention": str | None,
    "partition.clients": int,
    "model": dict[str, Any],
    "encoder": str | None,
    "index": dict[str, Any] | None,
    "index.settings": dict[str, Any] | None,
    "commit": str | None,
}
RESULT_KINDS: Kinds = {"best_accuracy": float | None}
RESULT_KINDS["final_client_accuracy"] = list[float | None] | None
RESULT_KINDS["final_client_accuracy_shared"] = list[float | None] | None
RESULT_KINDS["clusters"] = list[int] | None


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
    name: str
    state: str  # done, failed or unfinished
    config: JsonObject  # as it is in the file, which may be an older version's
    manifest: JsonObject
    result: JsonObject | None  # None: unfinished
    failure: str  # why a sweep gave it up

    @cached_property
    def records(self) -> list[RoundRecord]:
        file, clients = self.path / run_directory.ROUNDS, self.manifest["partition"]["clients"]
        records = read_rounds(file)
        if any(max(record.cohort, default=0) >= clients for record in records):
            raise ValueError(f"{file} names clients that the run of {clients} does not have")
        return records

    @cached_property
    def index(self) -> ClientIndex | None:
        file = self.path / run_directory.INDEX
        return ClientIndex.load(file) if file.exists() else None

    @cached_property
    def clients(self) -> Clients:
        """What each client holds; an older run has the partition and the index alone."""
        file = self.path / run_directory.CLIENTS
        return read_clients(file) if file.exists() else _older_clients(self.path, self.index)

    @property
    def evaluated(self) -> list[RoundRecord]:
        return Result(self.records).evaluated

    @property
    def cost(self) -> Cost:
        return cost_of(self.records, self.manifest.get("index"))

    @property
    def encoder(self) -> str | None:
        return self.manifest.get("encoder")


def has_begun(path: Path) -> bool:
    """Whether `path` is a run directory."""
    return (path / run_directory.CONFIG).is_file() and (path / run_directory.MANIFEST).is_file()


def run_state(path: Path) -> str:
    """done, failed, unfinished or new; failed wins, as a failed cell is tried again."""
    if failure_file(path).exists():
        return "failed"
    if (path / run_directory.RESULT).exists():
        return "done"
    return "unfinished" if (path / run_directory.CONFIG).exists() else "new"


def read_run(path: Path, name: str = "") -> Run:
    """One run directory; ValueError names a file that cannot be read."""
    manifest = read_json(path / run_directory.MANIFEST)
    done, failed = path / run_directory.RESULT, failure_file(path)
    check_kinds(path / run_directory.MANIFEST, manifest, MANIFEST_KINDS)
    result = read_json(done) if done.exists() else None
    check_kinds(done, result or {}, RESULT_KINDS)
    return Run(
        path=path,
        name=name or path.name,
        state=run_state(path),
        config=read_settings(path / run_directory.CONFIG),
        manifest=manifest,
        result=result,
        failure=failure_reason(failed) if failed.exists() else "",
    )


def check_kinds(file: Path, content: JsonObject, kinds: Kinds) -> None:
    """Refuse a file without what its readers count on; `None` among the kinds: may be missing."""
    for path, kind in kinds.items():
        value: object = content
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value is None and not is_a(None, kind):
            raise ValueError(f"{file}: {path} is missing")
        if not is_a(value, kind):
            raise ValueError(f"{file}: {path} cannot be {value!r:.40}")


def read_settings(file: Path) -> JsonObject:
    """The settings in a TOML file, as they are: an older version may have had other choices."""
    try:
        given = parse_toml(file.read_text(encoding="utf-8"))
        for name in FIELDS.keys() & given.keys():
            check_type(FIELDS[name], as_value(FIELDS[name], given[name]))
        return given
    except ValueError as error:  # TOML, and text that is no UTF-8
        raise ValueError(f"{file} cannot be read: {error}") from error


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


def read_clients(file: Path) -> Clients:
    try:
        arrays = read_npz(file, ("label_counts", "domains", "test_sizes"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{file}: cannot be read ({error})") from error
    counts, domains = arrays["label_counts"], arrays["domains"]
    whole = all(array.dtype.kind in "iu" for array in arrays.values())
    clients = (len(counts),) if counts.ndim == 2 else None
    if not whole or arrays["test_sizes"].shape != clients or domains.shape not in (clients, (0,)):
        found = ", ".join(f"{name} {a.dtype} {a.shape}" for name, a in arrays.items())
        raise ValueError(f"{file}: must be whole numbers of the same clients, got {found}")
    return Clients(counts.sum(1), arrays["test_sizes"], counts, domains if len(domains) else None)


def _older_clients(path: Path, index: ClientIndex | None) -> Clients:
    partition = Partition.load(path / run_directory.PARTITION)
    tests = partition.test.sizes
    counts = None if index is None else index.label_counts.numpy()
    domains = None if partition.domains is None else np.array(partition.domains)
    return Clients(partition.sizes, tests, counts, domains)


def failure_file(folder: Path) -> Path:
    """Where it stands that the run of this directory failed."""
    return folder.with_name(folder.name + ENDING)


def failure_reason(path: Path) -> str:
    """Why the run ended: what the file says."""
    facts = read_json(path)
    return reason(facts["exit_code"], facts["log"])


def reason(code: int, log: list[str]) -> str:
    """The first sentence of the error that a run ended with; the signal that killed it, or else
    its exit code and last line."""
    if code < 0:
        name = signal.Signals(-code).name
        return f"killed by {name}" + (", perhaps for want of memory" if name == "SIGKILL" else "")
    last = log[-1] if log else ""
    if last.startswith(ERROR):
        return last.removeprefix(ERROR).split(". ")[0]
    return f"exit code {code}" + (f": {last}" if last else "")
