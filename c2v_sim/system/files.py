"""Files and directories that are either whole or absent, whatever happens while they are written.

Each is made under a temporary name, flushed to disk, and only then given its name. `in_use` keeps
a second process out of a directory.
"""

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from filelock import FileLock, Timeout

from c2v_sim.system.errors import InUse

LOCK = "in_use.lock"
ZEROS = bytes(1 << 20)
NOT_SUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


@contextmanager
def replacing(path: Path, *, shared: bool = False) -> Iterator[Path]:
    """A temporary path beside `path`: flushed to disk and given its name if the block succeeds.

    If it fails the temporary file vanishes. `shared` files (caches) may be written by several
    processes at once, so the temporary name is the writer's own; elsewhere it is fixed, so that
    a killed writer leaves at most one file, which the next one overwrites.
    """
    temporary = path.with_name(f"{path.name}{_writer(shared)}.partial")
    try:
        temporary.touch()  # some writers create files that only the owner may read
        mode = temporary.stat().st_mode
        yield temporary
        flush(temporary)
        temporary.chmod(mode)
        temporary.replace(path)
        if not shared:  # a cache that a power failure takes away is made anew
            flush(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error says more
            temporary.unlink(missing_ok=True)
        raise


def _writer(shared: bool) -> str:
    """What makes a temporary name the writer's own, where others may write the same."""
    return f".{os.getpid()}-{threading.get_ident()}" if shared else ""


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill the temporary file of `replacing`."""
    with replacing(path) as temporary:
        write(temporary)


@contextmanager
def new_directory(path: Path, *, replace: bool = False, shared: bool = False) -> Iterator[Path]:
    """A temporary directory beside `path`, which takes its name if the block succeeds.

    A directory of that name is an error (FileExistsError), or with `replace` deleted just before.
    shared: as in `replacing`.
    """
    temporary = partial_directory(path, _writer(shared))
    shutil.rmtree(temporary, ignore_errors=True)  # of a writer that was killed
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for file in temporary.iterdir():
            flush(file)
        flush(temporary)
        if replace and path.exists():
            shutil.rmtree(path)
        temporary.rename(path)
        flush(path.parent)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError) and error.errno == errno.ENOTEMPTY:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from error
        raise


def remove_leftovers(folder: Path) -> None:
    """Delete what a killed process left half written in `folder`, which nobody else works in."""
    for pattern in ("*.partial", ".tmp??????"):  # of this module; of safetensors
        for leftover in folder.glob(pattern):
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink()


def partial_directory(path: Path, writer: str = "") -> Path:
    """The name under which `new_directory` makes `path`."""
    return path.with_name(f".{path.name}{writer}.partial")


def make_directory(path: Path, fill: Callable[[Path], None], *, numbered: bool) -> Path:
    """A directory with what `fill` writes into the one it is given: whole or absent; its path.

    Others may want the same name at the same time: FileExistsError where it is taken or, if
    `numbered`, the next free one with a counter.
    """
    name, count = path, 1
    while True:
        try:
            with new_directory(name, shared=True) as folder:
                fill(folder)
            return name
        except FileExistsError:
            if not numbered or not name.exists():
                raise
        count += 1
        name = path.with_name(f"{path.name}-{count}")


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Hold `folder` while the block runs; InUse if another process does.

    The system frees the lock of a process that was killed.
    """
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
        while not (folder / LOCK).exists():  # its last holder deleted it since we opened it
            lock.release()
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


def reserve(file: IO[bytes], size: int) -> None:
    """Give the empty `file` `size` bytes, zeros, for which the disk has space; OSError otherwise.

    In a file without them (a sparse one) a full disk ends the process that writes to its mapped
    memory, by SIGBUS and without a word.
    """
    try:
        os.posix_fallocate(file.fileno(), 0, size)
    except (AttributeError, OSError) as error:  # this system, or this file system, has none
        if isinstance(error, OSError) and error.errno not in NOT_SUPPORTED:
            raise
        for begin in range(0, size, len(ZEROS)):
            file.write(ZEROS[: size - begin])
        file.flush()


def flush(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
