"""Processes of a sweep: started while cores and memory allow, watched, and stopped in order.

A process is in a session of its own, so that Ctrl-C reaches only the sweep, which passes it on;
on Linux it dies with the sweep, so that nobody writes into a run directory that a later sweep
goes on with.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from c2v_sim.sweep.file import Cell
from c2v_sim.system.interrupt import Interrupt

SECONDS_BETWEEN_CHECKS = 0.2
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
PR_SET_PDEATHSIG = 1


def python() -> list[str]:
    """The interpreter that runs this, with its -P."""
    return [sys.executable, *(["-P"] if sys.flags.safe_path else [])]


@dataclass(eq=False)
class Job:
    """A process, before, while and after it runs."""

    name: str
    command: list[str]
    log: Path  # of standard output and error; appended
    about: list[Cell] = field(default_factory=list)  # which it runs, or builds an index for
    needs: int = 0  # bytes of memory, expected
    places: int = 1  # how many cells' cores it may use
    cores: int = 1
    gpus: int = 0
    folder: Path | None = None  # where it works; once that is there, it goes on by `command_again`
    command_again: list[str] = field(default_factory=list)
    started: float = 0.0
    peak: int = 0  # bytes of memory, seen
    process: subprocess.Popen | None = field(default=None, repr=False)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def start(self) -> None:
        parent = os.getpid()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=(lambda: die_with(parent)) if LIBC else None,
            )
        self.started = time.monotonic()

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        assert self.process is not None
        self.memory()
        return self.process.poll()

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def memory(self) -> int:
        """Bytes that the process has now."""
        assert self.process is not None
        with contextlib.suppress(psutil.Error):
            now = psutil.Process(self.process.pid).memory_info().rss
            self.peak = max(self.peak, now)
            return now
        return 0

    def tail(self, lines: int = 15) -> list[str]:
        """The last lines of the log."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - 20_000))
            return file.read().decode(errors="replace").splitlines()[-lines:]


def shares_of(count: int, at_once: int, places: int) -> list[int]:
    """How many of `places` each of `count` jobs may fill, `at_once` of them running: the same for
    all, but more for the last ones where they are too few to fill all places."""
    last = count % at_once
    each, of_last = (max(1, places // n) for n in (at_once, last or at_once))
    return [each] * (count - last) + [of_last] * last


def die_with(parent: int) -> None:
    """In a new process: the system kills it when the process `parent` ends, however it does."""
    assert LIBC is not None
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        os._exit(1)


def fits(job: Job, running: list[Job]) -> bool:
    """Whether there is memory for `job` beside those that run and may still grow."""
    growth = sum(max(0, other.needs - other.memory()) for other in running)
    return not running or psutil.virtual_memory().available - growth > job.needs


def run_jobs(
    jobs: list[Job],
    at_once: int,
    interrupt: Interrupt,
    *,
    ended: Callable[[Job, int], None],
    watch: Callable[[list[Job]], None] = lambda running: None,
    take: Callable[[Job], bool] = lambda job: True,
) -> None:
    """Run all `jobs`, at most `at_once` at the same time, until they are done or interrupted.

    take: asked before a job starts; it is left out where the answer is no. ended: called with each
    job and its exit code. watch: called now and then with those running.
    """
    assert interrupt.stop is not None
    waiting, running, told = list(jobs), list[Job](), False
    while running or (waiting and not interrupt.stop.is_set()):
        if not interrupt.stop.is_set():
            start_those_that_fit(waiting, running, at_once, take)
        elif not told:
            told = True
            for job in running:
                job.signal(interrupt.number or signal.SIGINT)
        for job in list(running):
            code = job.poll()
            if code is not None:
                running.remove(job)
                ended(job, code)
        watch(running)
        if running:
            time.sleep(SECONDS_BETWEEN_CHECKS)


def start_those_that_fit(
    waiting: list[Job],
    running: list[Job],
    at_once: int,
    take: Callable[[Job], bool] = lambda job: True,
) -> None:
    """Move jobs from `waiting` to `running` while there are places and memory."""
    while waiting and len(running) < at_once:
        first = next((job for job in waiting if fits(job, running)), None)
        if first is None:
            return
        waiting.remove(first)
        if take(first):
            first.start()
            running.append(first)
