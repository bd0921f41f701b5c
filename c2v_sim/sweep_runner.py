"""The cells of a sweep as processes: first the indices that they share, then the runs."""

import dataclasses
import hashlib
import json
import shlex
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

from c2v_sim.config import RunConfig, to_toml
from c2v_sim.index import DATA
from c2v_sim.index_config import index_settings
from c2v_sim.interrupt import Interrupt
from c2v_sim.progress import percent
from c2v_sim.run_directory import CONFIG, INDEX, RESULT, to_json, write_text
from c2v_sim.sweep_file import Cell, cell_folder
from c2v_sim.sweep_jobs import Job, run_jobs
from c2v_sim.threads import choose_device, usable_cores

SHARED = "shared"
PYTHON = [sys.executable, *(["-P"] if sys.flags.safe_path else []), "-m"]


@dataclass
class Outcome:
    """What became of the cells: done, and failed with the reason."""

    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def beside(out: Path, cell: Cell, ending: str) -> Path:
    """A file beside the cell's run directory: NAME.toml, NAME.log, NAME.failed."""
    folder = cell_folder(out, cell)
    return folder.with_name(f"{folder.name}.{ending}")


def state(out: Path, cell: Cell) -> str:
    """done, failed, unfinished or new."""
    if beside(out, cell, "failed").exists():
        return "failed"
    folder = cell_folder(out, cell)
    if (folder / RESULT).exists():
        return "done"
    return "unfinished" if (folder / CONFIG).exists() else "new"


def index_key(config: RunConfig) -> str:
    """The same for cells that use the same index; empty where none is to be built."""
    if not config.needs_client_index or config.index_file:
        return ""
    settings = dataclasses.asdict(index_settings(config)) | {"lanes": 0}
    facts = [settings, [getattr(config, name) for name in DATA]]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def lanes_of(config: RunConfig) -> int:
    """On a CPU one lane a cell: cells side by side keep the cores busier than lanes do."""
    return config.lanes or (1 if choose_device(config.device).type == "cpu" else 0)


def how_many(cells: list[Cell]) -> int:
    """Cells at the same time that the cores have room for; a GPU takes one."""
    if any(choose_device(cell.config.device).type != "cpu" for cell in cells):
        return 1
    return max(1, usable_cores() // max(lanes_of(cell.config) for cell in cells))


def run_cells(out: Path, cells: list[Cell], jobs: int | None, interrupt: Interrupt) -> Outcome:
    """Run what is not done yet."""
    outcome = Outcome(done=[c.name for c in cells if state(out, c) == "done"])
    todo = [cell for cell in cells if cell.name not in outcome.done]
    (out / "cells").mkdir(exist_ok=True)
    (out / SHARED).mkdir(exist_ok=True)
    for cell in todo:
        write_text(beside(out, cell, "toml"), to_toml(cell.config))
    if outcome.done:
        say(f"{len(outcome.done)} of {len(cells)} cells are done already")
    todo = build_indices(out, todo, interrupt, outcome)

    def ended(job: Job, code: int) -> None:
        cell: Cell = job.about
        if code == 0 and (cell_folder(out, cell) / RESULT).exists():
            outcome.done.append(cell.name)
            result = json.loads((cell_folder(out, cell) / RESULT).read_text())
            say(
                f"{cell.name}: best {percent(result['best_accuracy'])}, {job.seconds:.0f} s, "
                f"{len(outcome.done)} of {len(cells)}"
            )
        elif not (interrupt.stop and interrupt.stop.is_set()):
            mark_failed(out, cell, job, code, outcome)

    waiting = [cell_job(out, cell) for cell in todo]
    run_jobs(waiting, jobs or how_many(cells), interrupt, ended=ended)
    if not outcome.failed and not (interrupt.stop and interrupt.stop.is_set()):
        shutil.rmtree(out / SHARED, ignore_errors=True)
    return outcome


def cell_job(out: Path, cell: Cell) -> Job:
    beside(out, cell, "failed").unlink(missing_ok=True)
    folder = cell_folder(out, cell)
    command = [*PYTHON, "c2v_sim.run"]
    if (folder / CONFIG).exists():
        command += ["--resume", str(folder)]
    else:
        command += ["--config", str(beside(out, cell, "toml")), "--out", str(folder)]
        command += ["--label", f"sweep {out.name}, cell {cell.name}"]
    command += ["--lanes", str(lanes_of(cell.config))]
    return Job(cell.name, command, beside(out, cell, "log"), about=cell)


def build_indices(out: Path, cells: list[Cell], interrupt: Interrupt, outcome: Outcome):
    """Every index that `cells` need, one at a time; the cells whose index did not fail.

    One at a time and before the cells: the training of an index uses all cores at a fine grain.
    """
    users: dict[str, list[Cell]] = {}
    for cell in cells:
        key = index_key(cell.config)
        if key and not (cell_folder(out, cell) / INDEX).exists():
            users.setdefault(key, []).append(cell)
    marks = {key: out / SHARED / f"index-{key}.done" for key in users}
    jobs = []
    for key, using in users.items():
        if not marks[key].exists():
            config = beside(out, using[0], "toml")
            command = [*PYTHON, "c2v_sim.sweep_index", "--config", str(config)]
            command += ["--checkpoint", str(out / SHARED / f"index-{key}.safetensors")]
            jobs.append(Job(key, command, out / SHARED / f"index-{key}.log", about=using))
    lost: set[str] = set()

    def ended(job: Job, code: int) -> None:
        if code == 0:
            marks[job.name].touch()
            say(f"index of {len(job.about)} cells ({job.about[0].name}, …): {job.seconds:.0f} s")
        elif not (interrupt.stop and interrupt.stop.is_set()):
            for cell in job.about:
                mark_failed(out, cell, job, code, outcome)
                lost.add(cell.name)

    run_jobs(jobs, 1, interrupt, ended=ended)
    return [cell for cell in cells if cell.name not in lost]


def mark_failed(out: Path, cell: Cell, job: Job, code: int, outcome: Outcome) -> None:
    tail = job.tail()
    outcome.failed[cell.name] = tail[-1] if tail else f"exit code {code}"
    facts = {"command": shlex.join(job.command), "exit_code": code, "log": tail}
    write_text(beside(out, cell, "failed"), to_json(facts))
    say(f"{cell.name}: FAILED with exit code {code}: {outcome.failed[cell.name]}")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
