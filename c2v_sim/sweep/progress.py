"""Progress of a sweep on standard error: a live bar in a terminal, now and then a line elsewhere.

The time left is that of the rounds to come, each at the pace of finished and running cells of the
same kind; a kind that nobody has seen yet counts as the mean of the others.
"""

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

from c2v_sim.config import RunConfig
from c2v_sim.run.files import count_rounds
from c2v_sim.sweep.file import Cell, cell_folder
from c2v_sim.sweep.jobs import Job
from c2v_sim.system.settings import Affects, Value, values_affecting
from c2v_sim.system.text import duration

SECONDS_BETWEEN_UPDATES = 1.0
SECONDS_BETWEEN_LINES = 60.0  # where there is no terminal


def kind(config: RunConfig, what: Affects = Affects.PACE | Affects.WORK) -> tuple[Value, ...]:
    """The same for runs whose rounds (or with PACE alone: steps) take equally long."""
    return ("local" in config.improve, *values_affecting(config, what))


class SweepProgress:
    """Watches the cells in `out`; `at_once` is how many run side by side."""

    def __init__(
        self, out: Path, cells: list[Cell], done: int, at_once: int, stream: TextIO | None = None
    ) -> None:
        self.out, self.cells, self.done, self.at_once = out, cells, done, at_once
        self.stream = stream or sys.stderr
        self.failed = 0
        self.last_update, self.last_line = 0.0, time.monotonic()
        self.first_seen: dict[str, tuple[float, int]] = {}  # running cell -> when, rounds then
        self.paces: dict[tuple[Value, ...], list[float]] = {}  # seconds per round
        self.begun = {cell.name: count_rounds(cell_folder(out, cell)) for cell in cells}
        self.rounds = dict(self.begun)  # rounds done
        self.bar = None
        if self.stream.isatty():
            tqdm.monitor_interval = 0  # no thread: processes are forked
            self.bar = tqdm(
                total=sum(cell.config.rounds for cell in cells),
                initial=sum(self.rounds.values()),
                file=self.stream,
                dynamic_ncols=True,
                bar_format="{percentage:3.0f} %|{bar}| {desc}",
            )

    def say(self, line: str) -> None:
        """A line above the bar."""
        if self.bar is None:
            print(line, file=self.stream, flush=True)
        else:
            self.bar.write(line, file=self.stream)

    def cell_done(self, cell: Cell, seconds: float, best: str) -> None:
        self.done += 1
        self.rounds[cell.name] = cell.config.rounds
        trained = max(1, cell.config.rounds - self.begun[cell.name])
        self.paces.setdefault(kind(cell.config), []).append(seconds / trained)
        left = self.left([])
        eta = "" if not left else f"  ETA {duration(left)}"
        count = f"{self.done} of {len(self.cells)}"
        self.say(f"{cell.name}  best {best}  {duration(seconds)}  {count}{eta}")

    def gave_up(self, cell: Cell) -> None:
        """The cell has failed: nothing of it is left to do."""
        self.failed += 1
        self.rounds[cell.name] = cell.config.rounds

    def index(self, text: str) -> None:
        """How far the index is that is being built."""
        self._show(text)

    def update(self, running: list[Job]) -> None:
        """Show where the running cells are."""
        now = time.monotonic()
        if now - self.last_update < SECONDS_BETWEEN_UPDATES:
            return
        self.last_update = now
        shown = []
        for job in running:
            (cell,) = job.about
            done = self.rounds[cell.name] = count_rounds(cell_folder(self.out, cell))
            if done > self.begun[cell.name]:
                self.first_seen.setdefault(cell.name, (now, done))
            shown.append(f"{cell.name} {done}/{cell.config.rounds}")
        left = self.left(running)
        failed = f", {self.failed} failed" if self.failed else ""
        eta = f"  ETA {duration(left)}" if left else ""
        self._show(f"{self.done}/{len(self.cells)} cells{failed}{eta}  {', '.join(shown)}")

    def _show(self, text: str) -> None:
        if self.bar is not None:
            self.bar.n = sum(self.rounds.values())
            self.bar.set_description_str(text)
        elif time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES:
            self.last_line = time.monotonic()
            self.say(text)

    def left(self, running: Iterable[Job]) -> float:
        """Seconds until all cells are done; 0 while nothing is known."""
        paces = {k: sum(v) / len(v) for k, v in self.paces.items()}
        for job in running:  # from its first round on: what comes before is no round
            since, rounds = self.first_seen.get(job.name, (0.0, 0))
            trained = self.rounds[job.name] - rounds
            if since and trained:
                pace = (self.last_update - since) / trained
                paces.setdefault(kind(job.about[0].config), pace)
        if not paces:
            return 0.0
        mean = sum(paces.values()) / len(paces)
        each = [
            (cell.config.rounds - self.rounds[cell.name]) * paces.get(kind(cell.config), mean)
            for cell in self.cells
        ]
        return max(*each, sum(each) / self.at_once) if len(each) > 1 else each[0]

    def close(self) -> None:
        if self.bar is not None:
            self.last_update = 0.0
            self.update([])
            self.bar.close()
