"""Run directories as the report needs them: paths → `Run`s, grouped by everything but the seed.

A run directory is one with config.toml and manifest.json. What a run that is still going (or was
stopped) does not have yet is None; a file that is there and cannot be read is an error.
"""

import json
import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from c2v_sim import run_directory
from c2v_sim.client_index import ClientIndex
from c2v_sim.config import FREE_ON_RESUME, NEEDS
from c2v_sim.partition import UNREADABLE, Partition
from c2v_sim.records import Result, RoundRecord

# Settings on which the result does not depend, the seed, and a file: the manifest says what was
# in it.
NOT_COMPARED = FREE_ON_RESUME | {"seed", "device", "index_file"}
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

    @property
    def evaluated(self) -> list[RoundRecord]:
        return Result(self.records).evaluated

    @property
    def seconds(self) -> float:
        return sum(sum(r.seconds.values()) for r in self.records)

    @property
    def rounds(self) -> str:
        """In words: all of them, or how many of how many."""
        done, planned = len(self.records), self.config.get("rounds", 0)
        return str(done) if self.result else f"{done} of {planned}, unfinished"

    @property
    def encoder(self) -> str | None:
        return self.manifest.get("encoder")


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ only in their seed."""

    label: str
    runs: list[Run]


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The run directories among `paths` and inside them; a path without one is refused."""
    found: list[Path] = []
    for path in paths:
        inside = [Path(at) for at, _, files in _walk(path) if _is_run(files)]
        if not inside:
            why = "it holds no run directory" if path.is_dir() else "there is no such directory"
            raise ValueError(
                f"{path} is not a run directory: {why} (a run directory has "
                f"{run_directory.CONFIG} and {run_directory.MANIFEST})"
            )
        found += [run for run in inside if run.resolve() not in {f.resolve() for f in found}]
    return found


def _is_run(files: list[str]) -> bool:
    return {run_directory.CONFIG, run_directory.MANIFEST} <= set(files)


def _walk(path: Path):
    """os.walk in order of names; not into run directories, nor into hidden or half-made ones."""
    for at, folders, files in os.walk(path):
        folders[:] = [] if _is_run(files) else sorted(f for f in folders if f[0] != ".")
        yield at, folders, files


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Read run directories; their names are the ends of their paths that tell them apart."""
    resolved = [path.resolve() for path in paths]
    depth = 1
    while len({p.parts[-depth:] for p in resolved}) < len(resolved):
        depth += 1
    names = ["/".join(p.parts[-depth:]) for p in resolved]
    return [read_run(path, name) for path, name in zip(paths, names, strict=True)]


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
    return Run(path, name, config, manifest, records, result, clients, index)


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
        with np.load(file, allow_pickle=False) as arrays:
            counts, domains = arrays["label_counts"], arrays["domains"]
            return Clients(
                counts.sum(1), arrays["test_sizes"], counts, domains if len(domains) else None
            )
    except UNREADABLE as error:
        raise ValueError(f"{file}: cannot be read ({error})") from error


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Runs by equal settings; groups in the order of their first run, an algorithm as it is before
    its improvements, seeds in their order."""
    facts = [compared(run) for run in runs]
    members: dict[str, list[int]] = {}
    for i, fact in enumerate(facts):
        members.setdefault(json.dumps(fact, sort_keys=True), []).append(i)
    algorithms = list(dict.fromkeys(run.config.get("algorithm") for run in runs))

    def place(ids: list[int]) -> tuple[int, int]:
        config = runs[ids[0]].config
        return algorithms.index(config.get("algorithm")), len(config.get("improve", ()))

    grouped = sorted(members.values(), key=place)
    firsts = [facts[ids[0]] for ids in grouped]
    names = [n for n in dict.fromkeys(n for fact in firsts for n in fact) if differs(n, firsts)]
    return [
        Group(
            group_label(facts[ids[0]], names),
            sorted((runs[i] for i in ids), key=lambda run: run.config.get("seed", 0)),
        )
        for ids in grouped
    ]


def compared(run: Run) -> dict[str, Any]:
    """What two runs must have in common to be seeds of one experiment."""
    facts = {name: v for name, v in run.config.items() if name not in NOT_COMPARED}
    made = (run.manifest.get("index") or {}).get("settings", {})
    own = {"seed", "lanes", "threads", "device"}
    if made:  # an index from a file was made with other settings than the run's
        copies = {f"index_{name.removeprefix('index_')}" for name in made}
        facts = {name: v for name, v in facts.items() if name not in copies}
    facts |= {"data": run.manifest["data"]["name"], "index_encoder": run.encoder}
    return facts | {f"index {name}": v for name, v in made.items() if name not in own}


def differs(name: str, facts: list[dict[str, Any]]) -> bool:
    """Whether those groups on which a setting has an effect differ in it."""
    return len({json.dumps(fact.get(name)) for fact in facts if has_effect(name, fact)}) > 1


def has_effect(name: str, facts: dict[str, Any]) -> bool:
    """Whether the other settings let this one do something."""
    if name.startswith("index"):
        return bool(facts.get("improve"))
    other, allowed = NEEDS.get(name, (name, None))
    value = facts.get(other)
    values = value if isinstance(value, list) else [value]
    return allowed is None or bool(set(values) & set(allowed))


def group_label(facts: dict[str, Any], differing: list[str]) -> str:
    """`feddyn + sampling, local; alpha 0.5`: algorithm, improvements, then whatever differs."""
    improved = facts.get("improve") or []
    label = str(facts.get("algorithm"))
    if improved:
        every = len(improved) == 3
        label += " + Client2Vec" if every else f" + {', '.join(improved)}"
    for name in differing:
        value = facts.get(name)
        said_elsewhere = name in ("algorithm", "improve", "dataset")
        if said_elsewhere or value in (None, "") or not has_effect(name, facts):
            continue
        text = ", ".join(value) or "nothing" if isinstance(value, list) else str(value)
        plain = name in ("data", "model", "partition")
        label += f"; {text}" if plain else f"; {name.replace('_', ' ')} {text}"
    return label


def standins(runs: Sequence[Run]) -> list[str]:
    """A sentence for every stand-in that took the place of data or of the paper's encoder."""

    def of_runs(chosen: list[Run]) -> str:
        return "this run" if len(runs) == 1 else f"{len(chosen)} of {len(runs)} runs"

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
