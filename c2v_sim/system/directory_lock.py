"""One process at a time works in a directory; the system frees the lock of a killed one."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from c2v_sim.system.errors import InUse

LOCK = "in_use.lock"


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Hold `folder` while the block runs; InUse if another process does."""
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise InUse(
            f"{folder}: another process works in this directory; wait for it, or stop it"
        ) from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # some systems delete no file that is open
            (folder / LOCK).unlink()
        lock.release()
