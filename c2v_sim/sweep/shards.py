"""--shard i/n: n sweeps of the same file share a directory, such as the tasks of a job array.

Shard i begins with every n-th cell and then helps with those that nobody works on. Whoever runs a
cell holds its lock in shared/, so no cell runs twice at the same time, and the cells of a task that
was killed are free. Of an index that several cells use, the first that needs it builds it and
the others wait. The locks are the system's (flock): the directory must be on a file system that has
them on all hosts, as NFS, Lustre and GPFS do.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from c2v_sim.sweep.file import Cell, state
from c2v_sim.system.errors import ConfigError
from c2v_sim.system.files import in_use

SHARED = "shared"
SECONDS_BETWEEN_LOOKS = 1.0


@dataclass
class Shard:
    """Number `number` of `count`, from 1; holds the locks of the cells that it runs."""

    number: int
    count: int
    _held: dict[str, FileLock] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """`2/8`: the second of eight."""
        found = re.fullmatch(r"(\d+)/(\d+)", text)
        if not found or not 1 <= int(found[1]) <= int(found[2]):
            raise ConfigError(f"--shard must be i/n with i from 1 to n, such as 2/8, got {text}")
        return cls(int(found[1]), int(found[2]))

    def own(self, cells: list[Cell]) -> list[Cell]:
        """Those with which this shard begins."""
        return cells[self.number - 1 :: self.count]

    def take(self, out: Path, cell: Cell) -> bool:
        """Hold the cell, unless another shard does or has brought it to its end."""
        lock = FileLock(out / SHARED / f"{cell.name}.lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            return False
        if state(out, cell) in ("done", "failed"):
            lock.release()
            return False
        self._held[cell.name] = lock
        return True

    def give_back(self, cell: Cell) -> None:
        self._held.pop(cell.name).release()


@contextmanager
def one_at_a_time(out: Path, name: str, stopped: Callable[[], bool]) -> Iterator[None]:
    """Inside, no other shard is in a block of the same name; sooner where `stopped`."""
    lock = FileLock(out / SHARED / f"{name}.lock", timeout=SECONDS_BETWEEN_LOOKS)
    while not stopped():
        try:
            lock.acquire()
            break
        except Timeout:
            continue
    try:
        yield
    finally:
        lock.release()


@contextmanager
def begun_together(out: Path) -> Iterator[None]:
    """Inside, the shards that begin prepare the directory one after the other; InUse where a sweep
    without shards works in it."""
    (out / SHARED).mkdir(parents=True, exist_ok=True)
    with one_at_a_time(out, "directory", lambda: False), in_use(out):
        yield
