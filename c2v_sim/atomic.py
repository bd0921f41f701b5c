"""Files that are either whole or absent, whatever happens while they are written."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """A temporary path beside `path`: flushed to disk and given its name if the block succeeds.

    If it fails the temporary file vanishes. `shared` files (caches) may be written by several
    processes at once, so the temporary name is the writer's own; elsewhere it is fixed, so that
    a killed writer leaves at most one file, which the next one overwrites.
    """
    writer = f".{os.getpid()}-{threading.get_ident()}" if shared else ""
    temporary = path.with_name(f"{path.name}{writer}.partial")
    try:
        temporary.touch()  # some writers create files that only the owner may read
        mode = temporary.stat().st_mode
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(mode)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill the temporary file of `replacing`."""
    with replacing(path) as temporary:
        write(temporary)
