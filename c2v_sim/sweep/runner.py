"""The cells of a sweep as processes: first the indices that they share, then the runs."""

import hashlib
import json
import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from c2v_sim.config import RunConfig, index_settings, to_toml
from c2v_sim.run.files import CONFIG, INDEX, RESULT, to_json, write_text
from c2v_sim.run.index import SETTINGS, directory_settings
from c2v_sim.run.reader import failure_file, reason
from c2v_sim.sweep.file import Cell, beside, cell_folder, state
from c2v_sim.sweep.jobs import Job, python, run_jobs, shares_of
from c2v_sim.sweep.progress import SweepProgress
from c2v_sim.system.files import remove_leftovers
from c2v_sim.system.interrupt import Interrupt
from c2v_sim.system.machine import choose_device, usable_cores
from c2v_sim.system.settings import Affects, fixed, values_affecting
from c2v_sim.system.text import duration, percent

SHARED = "shared"
PYTHON = [*python(), "-m"]


def index_key(config: RunConfig) -> str:
    """The same for cells that use the same index; empty where none is to be built."""
    if not config.needs_client_index or config.index_file:
        return ""
    facts = [
        fixed(index_settings(config)),
        values_affecting(config, Affects.DATA | Affects.CLIENTS),
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def index_folder(out: Path, key: str) -> Path:
    """Where `python -m c2v_sim.index` builds the index of this key."""
    return out / SHARED / f"index-{key}"


def index_users(out: Path, cells: list[Cell]) -> dict[str, list[Cell]]:
    """The cells that wait for each index that is still to be built."""
    users: dict[str, list[Cell]] = {}
    for cell in cells:
        key = index_key(cell.config)
        folders = (cell_folder(out, cell), index_folder(out, key))
        if key and not any((folder / INDEX).exists() for folder in folders):
            users.setdefault(key, []).append(cell)
    return users


def on_cpu(config: RunConfig) -> bool:
    return choose_device(config.device).type == "cpu"


def how_many(cells: list[Cell]) -> int:
    """Cells at the same time that the cores have room for, each with one lane if it does not say:
    cells side by side keep the cores busier than lanes do. A GPU takes one."""
    if not all(on_cpu(cell.config) for cell in cells):
        return 1
    return max(1, usable_cores() // max(cell.config.lanes or 1 for cell in cells))


def places_of(cells: list[Cell], at_once: int) -> list[int]:
    """How many cells' cores each of `cells` may use, so that none is idle at the end."""
    return shares_of(len(cells), at_once, how_many(cells) if cells else 1)


@dataclass
class Runner:
    """Runs the `cells` of the sweep in `out` that are not done; `failed`: cell -> why."""

    out: Path
    cells: list[Cell]
    at_once: int
    interrupt: Interrupt
    needs: dict[str, int]  # cell -> bytes of memory, expected
    failed: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        done = [cell for cell in self.cells if state(self.out, cell) == "done"]
        todo = [cell for cell in self.cells if cell not in done]
        for folder in ("cells", SHARED):
            (self.out / folder).mkdir(exist_ok=True)
            remove_leftovers(self.out / folder)
        for cell in todo:
            write_text(beside(self.out, cell, "toml"), to_toml(cell.config))
            failure_file(cell_folder(self.out, cell)).unlink(missing_ok=True)
        self.progress = SweepProgress(self.out, self.cells, len(done), self.at_once)
        if done:
            self.progress.say(f"{len(done)} of {len(self.cells)} cells are done already")
        try:
            self._build_indices(todo)
            self._run_cells([cell for cell in todo if cell.name not in self.failed])
        finally:
            self.progress.close()
        if not self.failed and not self.stopped:
            shutil.rmtree(self.out / SHARED, ignore_errors=True)

    @property
    def stopped(self) -> bool:
        return self.interrupt.stop is not None and self.interrupt.stop.is_set()

    def _run_cells(self, cells: list[Cell]) -> None:
        jobs = [
            self._job(cell, places)
            for cell, places in zip(cells, places_of(cells, self.at_once), strict=True)
        ]
        watch = self.progress.update
        run_jobs(jobs, self.at_once, self.interrupt, ended=self._cell_ended, watch=watch)

    def _job(self, cell: Cell, places: int) -> Job:
        folder = cell_folder(self.out, cell)
        command = [*PYTHON, "c2v_sim.run"]
        if (folder / CONFIG).exists():
            command += ["--resume", str(folder)]
        else:
            command += ["--config", str(beside(self.out, cell, "toml")), "--out", str(folder)]
            command += ["--label", f"sweep {self.out.resolve().name}, cell {cell.name}"]
        lanes = cell.config.lanes or (places if on_cpu(cell.config) else 0)
        command += ["--lanes", str(lanes)]
        log = beside(self.out, cell, "log")
        needs = self.needs.get(cell.name, 0) * places
        return Job(cell.name, command, log, about=[cell], needs=needs)

    def _cell_ended(self, job: Job, code: int) -> None:
        (cell,) = job.about
        file = cell_folder(self.out, cell) / RESULT
        if code == 0 and file.exists():
            best = json.loads(file.read_text())["best_accuracy"]
            self.progress.cell_done(cell, job.seconds, percent(best))
        elif not self.stopped:
            self._mark_failed(cell, job, code)

    def _build_indices(self, cells: list[Cell]) -> None:
        """One at a time and before the cells: the training of an index keeps all cores busy
        with short steps, and loses much to whoever shares them. The cells find it in the cache."""
        jobs = [self._index_job(*one) for one in index_users(self.out, cells).items()]
        done = 0

        def watch(running: list[Job]) -> None:
            for job in running:
                line = "".join(job.tail(1))
                self.progress.index(f"index {done + 1}/{len(jobs)} {named(job.about)}: {line}")

        def ended(job: Job, code: int) -> None:
            nonlocal done
            done += 1
            if code == 0:
                self.progress.say(f"index {named(job.about)}: {duration(job.seconds)}")
            elif not self.stopped:
                for cell in job.about:
                    self._mark_failed(cell, job, code)

        run_jobs(jobs, 1, self.interrupt, ended=ended, watch=watch)

    def _index_job(self, key: str, using: list[Cell]) -> Job:
        """`--resume` in a directory that holds the settings: it begins, or goes on."""
        folder, config = index_folder(self.out, key), using[0].config
        if not (folder / SETTINGS).exists():
            folder.mkdir(exist_ok=True)
            settings = directory_settings(config, index_settings(config))
            write_text(folder / SETTINGS, to_json(settings))
        command = [*PYTHON, "c2v_sim.index", "--resume", str(folder)]
        log = folder.with_suffix(".log")
        return Job(key, command, log, about=using)

    def _mark_failed(self, cell: Cell, job: Job, code: int) -> None:
        tail = job.tail()
        self.failed[cell.name] = reason(code, tail)
        facts = {"command": shlex.join(job.command), "exit_code": code, "log": tail}
        write_text(failure_file(cell_folder(self.out, cell)), to_json(facts))
        self.progress.gave_up(cell)
        self.progress.say(f"{cell.name}  FAILED: {self.failed[cell.name]}; see {job.log}")


def named(cells: list[Cell]) -> str:
    more = f" and {len(cells) - 1} more" if len(cells) > 1 else ""
    return f"of {cells[0].name}{more}"
