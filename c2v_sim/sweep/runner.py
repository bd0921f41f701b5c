"""The cells of a sweep as processes: first the indices that they share, then the runs."""

import hashlib
import json
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from c2v_sim.config import RunConfig, index_settings, to_toml
from c2v_sim.run.files import CONFIG, INDEX, RESULT, to_json, write_text
from c2v_sim.run.index import SETTINGS, directory_settings
from c2v_sim.run.reader import failure_file, reason
from c2v_sim.sweep.file import Cell, beside, cell_folder, state
from c2v_sim.sweep.jobs import Job, python, run_jobs, shares_of
from c2v_sim.sweep.progress import SweepProgress
from c2v_sim.sweep.shards import SHARED, Shard, one_at_a_time
from c2v_sim.system.files import remove_leftovers
from c2v_sim.system.interrupt import Interrupt
from c2v_sim.system.machine import choose_device, usable_cores
from c2v_sim.system.settings import Affects, fixed, values_affecting
from c2v_sim.system.text import duration, percent

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
    shard: Shard | None = None  # whose cells come first; then those that nobody works on
    start: Callable[..., None] = run_jobs  # or run_on_ray
    failed: dict[str, str] = field(default_factory=dict)

    def run(self) -> None:
        own = self.cells if self.shard is None else self.shard.own(self.cells)
        self.cells = own + [cell for cell in self.cells if cell not in own]
        done = [cell for cell in self.cells if state(self.out, cell) == "done"]
        todo = [cell for cell in self.cells if cell not in done]
        for folder in ("cells", SHARED):
            (self.out / folder).mkdir(exist_ok=True)
            if self.shard is None:  # or they may be of others that work here
                remove_leftovers(self.out / folder)
        for cell in own:
            failure_file(cell_folder(self.out, cell)).unlink(missing_ok=True)
        self.progress = SweepProgress(self.out, self.cells, len(done), self.at_once)
        if done:
            self.progress.say(f"{len(done)} of {len(self.cells)} cells are done already")
        try:
            self._build_indices(todo)
            self._run_cells([cell for cell in todo if cell.name not in self.failed])
        finally:
            self.progress.close()
        if not self.failed and not self.stopped and self.shard is None:
            self._delete_shared()

    def _delete_shared(self) -> None:
        """What the cells have in common: each of them has it too."""
        shutil.rmtree(self.out / SHARED, ignore_errors=True)
        if (self.out / SHARED).exists():
            what = f"{self.out / SHARED} could not be deleted"
            self.progress.say(f"warning: {what}; it is not needed any more")

    @property
    def stopped(self) -> bool:
        return self.interrupt.stop is not None and self.interrupt.stop.is_set()

    def _run_cells(self, cells: list[Cell]) -> None:
        jobs = [
            self._job(cell, places)
            for cell, places in zip(cells, places_of(cells, self.at_once), strict=True)
        ]
        watch = self.progress.update
        self.start(
            jobs, self.at_once, self.interrupt, ended=self._cell_ended, watch=watch, take=self._take
        )

    def _take(self, job: Job) -> bool:
        """Whether the cell is to be run here; another shard may have it, or have been faster."""
        (cell,) = job.about
        if self.shard is not None and not self.shard.take(self.out, cell):
            return False
        write_text(beside(self.out, cell, "toml"), to_toml(cell.config))
        job.command = self._command(cell, job.places)
        job.command_again = self._command(cell, job.places, again=True)
        return True

    def _job(self, cell: Cell, places: int) -> Job:
        log = beside(self.out, cell, "log")
        needs = self.needs.get(cell.name, 0) * places
        folder, gpus = cell_folder(self.out, cell), 0 if on_cpu(cell.config) else 1
        cores = cell.config.lanes or places
        return Job(
            cell.name,
            [],
            log,
            about=[cell],
            needs=needs,
            places=places,
            cores=cores,
            gpus=gpus,
            folder=folder,
        )

    def _command(self, cell: Cell, places: int, again: bool = False) -> list[str]:
        """Begins the cell, or goes on with it where it has begun or will have (`again`)."""
        folder = cell_folder(self.out, cell)
        command = [*PYTHON, "c2v_sim.run"]
        if again or (folder / CONFIG).exists():
            command += ["--resume", str(folder)]
        else:
            command += ["--config", str(beside(self.out, cell, "toml")), "--out", str(folder)]
            command += ["--label", f"sweep {self.out.resolve().name}, cell {cell.name}"]
        lanes = cell.config.lanes or (places if on_cpu(cell.config) else 0)
        return [*command, "--lanes", str(lanes)]

    def _cell_ended(self, job: Job, code: int) -> None:
        (cell,) = job.about
        if self.shard is not None:
            self.shard.give_back(cell)
        file = cell_folder(self.out, cell) / RESULT
        if code == 0 and file.exists():
            best = json.loads(file.read_text())["best_accuracy"]
            self.progress.cell_done(cell, job.seconds, percent(best))
        elif not self.stopped:
            self._mark_failed(cell, job, code)

    def _build_indices(self, cells: list[Cell]) -> None:
        """One at a time and before the cells: the training of an index keeps all cores busy
        with short steps, and loses much to whoever shares them. The cells find it in the cache."""
        if self.shard is None:
            self._run_index_jobs(
                [self._index_job(*i) for i in index_users(self.out, cells).items()]
            )
            return
        for key in index_users(self.out, cells):
            with one_at_a_time(self.out, f"index-{key}", lambda: self.stopped):
                using = index_users(self.out, cells).get(key)  # another shard may have built it
                self._run_index_jobs([self._index_job(key, using)] if using else [])

    def _run_index_jobs(self, jobs: list[Job]) -> None:
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

        self.start(jobs, 1, self.interrupt, ended=ended, watch=watch)

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
