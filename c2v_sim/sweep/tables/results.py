"""What the cells of a sweep came to: run directories -> numbers by row, column and seed.

Enters: a sweep and its directory. Leaves: one Entry per place of the table: the value of each
seed, why others are missing, and the paper's value. Accuracies are in %, times in seconds.

    accuracy   max over rounds of the mean accuracy over clients; beside it, the mean of the later
               half of the evaluations
    time       the rounds' seconds, all stages, up to the first round that is at least as accurate
               as the best of the run without index that has the same seed
    index      cosines of β^f within and between domains, and more of index/quality.py
"""

import itertools
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from c2v_sim.config import RunConfig, saved_config
from c2v_sim.run.files import CONFIG, JsonObject
from c2v_sim.run.reader import Run, failure_file, failure_reason, read_run, run_state
from c2v_sim.simulator.records import Result, RoundRecord
from c2v_sim.sweep.file import Cell, Sweep, cell_folder
from c2v_sim.sweep.tables.layout import SEEDS
from c2v_sim.sweep.tables.paper import paper_value

ORIGINAL = "original"  # the column that gains are taken over
ACCURACY = "best accuracy"
TIMES = ("generate_index", "training_total", "training_to_fedavg_best", "total_to_fedavg_best")
QUALITY = ("within", "between", "silhouette", "label_spearman")
NEVER, NOT_RECORDED, UNDEFINED = "never", "not recorded", "not defined"
NOT_EVALUATED = "not evaluated"


@dataclass(frozen=True)
class CellRun:
    """A cell and what its run directory holds."""

    cell: Cell
    status: str  # done, failed, unfinished or not run
    config: RunConfig  # as it ran; the sweep's where it did not
    reason: str  # why it failed
    run: Run | None  # None where there is no run directory

    @property
    def seed(self) -> str:
        return self.cell.labels.get(SEEDS, str(self.cell.config.seed))

    @property
    def manifest(self) -> JsonObject:
        """Empty where there is none."""
        return self.run.manifest if self.run else {}

    @property
    def records(self) -> list[RoundRecord]:
        return self.run.records if self.run else []

    @property
    def best(self) -> float | None:
        """The best accuracy over rounds, of a run that is done; None: it was not evaluated."""
        assert self.run is not None
        assert self.run.result is not None
        return self.run.result["best_accuracy"]

    @property
    def late(self) -> float | None:
        return Result(self.records).late


@dataclass
class Entry:
    """One place of the table."""

    rows: dict[str, str]  # axis -> label
    column: str
    runs: list[CellRun]  # none: the sweep skips this place
    values: dict[str, float] = field(default_factory=dict)  # seed -> value
    missing: dict[str, str] = field(default_factory=dict)  # seed -> why there is no value
    paper_mean: float | None = None
    paper_std: float | None = None
    gains: dict[str, float] = field(default_factory=dict)  # seed -> value - original's
    late: dict[str, float] = field(default_factory=dict)  # seed -> mean of the later half
    late_gains: dict[str, float] = field(default_factory=dict)
    paper_gain: float | None = None

    @property
    def mean(self) -> float | None:
        return mean(self.values.values())

    @property
    def std(self) -> float | None:
        return spread(self.values.values())

    @property
    def gain(self) -> float | None:
        return mean(self.gains.values())

    @property
    def gain_std(self) -> float | None:
        return spread(self.gains.values())

    @property
    def difference(self) -> float | None:
        if self.mean is None or self.paper_mean is None:
            return None
        return self.mean - self.paper_mean


def mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return statistics.fmean(known) if known else None


def spread(values: Iterable[float]) -> float | None:
    """The standard deviation of the population; None where a single seed has none."""
    known = list(values)
    return statistics.pstdev(known) if len(known) > 1 else None


def read_cells(sweep: Sweep, out: Path) -> list[CellRun]:
    """All cells of the sweep, with what is in OUT/cells."""
    return [read_cell(cell, cell_folder(out, cell)) for cell in sweep.cells]


def read_cell(cell: Cell, folder: Path) -> CellRun:
    state, begun = run_state(folder), (folder / CONFIG).is_file()
    return CellRun(
        cell,
        status="not run" if state == "new" else state,
        config=saved_config(folder / CONFIG) if begun else cell.config,
        reason=failure_reason(failure_file(folder)) if state == "failed" else "",
        run=read_run(folder) if begun else None,
    )


def make_entries(sweep: Sweep, runs: list[CellRun]) -> list[Entry]:
    """Every place of the sweep's table, row by row."""
    table = sweep.table
    columns, measure = MEASURES[table.kind]
    if table.columns:
        columns = sweep.axes[table.columns]
    entries = []
    for row in rows_of(sweep):
        for column in columns:
            place = row | ({table.columns: column} if table.columns else {})
            entry = Entry(row, column, matching(runs, place))
            for run in entry.runs:
                done = run.status == "done"
                add_value(entry, run, measure(run, column, runs) if done else run.status)
                if done and run.late is not None and table.kind == "accuracy":
                    entry.late[run.seed] = 100.0 * run.late
            if table.paper:
                labels = [*row.values(), column]
                entry.paper_mean, entry.paper_std = paper_value(table.paper, labels)
            entries.append(entry)
    add_gains(entries)
    return entries


def rows_of(sweep: Sweep) -> list[dict[str, str]]:
    """The labels of each row of the table."""
    axes = sweep.table.rows
    combinations = itertools.product(*(sweep.axes[axis] for axis in axes))
    return [dict(zip(axes, labels, strict=True)) for labels in combinations]


def matching(runs: list[CellRun], labels: Mapping[str, str]) -> list[CellRun]:
    return [run for run in runs if labels.items() <= run.cell.labels.items()]


def add_value(entry: Entry, run: CellRun, value: float | str) -> None:
    """Add the value of one run, or the text that says why it has none."""
    if isinstance(value, str):
        entry.missing[run.seed] = value
    else:
        entry.values[run.seed] = value


def best_accuracy(run: CellRun, column: str, runs: list[CellRun]) -> float | str:
    return NOT_EVALUATED if run.best is None else 100.0 * run.best


def seconds(run: CellRun, column: str, runs: list[CellRun]) -> float | str:
    """One of TIMES; a text says why there is no number."""
    spent = list(itertools.accumulate(sum(r.seconds.values()) for r in run.records))
    index = index_seconds(run)
    if column == "generate_index":
        return index
    if column == "training_total":
        return spent[-1]
    baseline = next((r for r in runs if r.seed == run.seed and not r.config.improve), None)
    if baseline is None or baseline.status != "done":
        return f"baseline {baseline.status if baseline else 'not run'}"
    target = baseline.best
    if target is None:
        return NOT_EVALUATED
    by_round = zip(spent, run.records, strict=True)
    to_best = next((s for s, r in by_round if (r.accuracy or 0.0) >= target), None)
    if to_best is None:
        return NEVER
    if column == "training_to_fedavg_best":
        return to_best
    return index if isinstance(index, str) else index + to_best


def index_seconds(run: CellRun) -> float | str:
    """What it took to make the run's index, also where it came from the cache."""
    if not run.config.needs_client_index:
        return 0.0
    seconds = (run.manifest["index"] or {}).get("seconds")
    return NOT_RECORDED if seconds is None else seconds


def index_quality(run: CellRun, column: str, runs: list[CellRun]) -> float | str:
    if column == ACCURACY:
        return best_accuracy(run, column, runs)
    return (run.manifest["index"] or {}).get("quality", {}).get(column, UNDEFINED)


def add_gains(entries: list[Entry]) -> None:
    """Over the column `original` of the same row, seed by seed."""
    originals = {tuple(e.rows.values()): e for e in entries if e.column == ORIGINAL}
    for entry in entries:
        original = originals.get(tuple(entry.rows.values()))
        if original is None or original is entry:
            continue
        entry.gains = differences(entry.values, original.values)
        entry.late_gains = differences(entry.late, original.late)
        if entry.paper_mean is not None and original.paper_mean is not None:
            entry.paper_gain = entry.paper_mean - original.paper_mean


def differences(values: dict[str, float], others: dict[str, float]) -> dict[str, float]:
    """Of the seeds that both have."""
    return {seed: value - others[seed] for seed, value in values.items() if seed in others}


Measure = Callable[[CellRun, str, list[CellRun]], float | str]
# kind -> its columns, where no axis gives them, and what stands in them
MEASURES: dict[str, tuple[tuple[str, ...], Measure]] = {
    "accuracy": ((ACCURACY,), best_accuracy),
    "time": (TIMES, seconds),
    "index": ((*QUALITY, ACCURACY), index_quality),
}
