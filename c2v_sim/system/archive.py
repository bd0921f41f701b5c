"""What is in zip archives and npz files, of which some are damaged: ValueError says how.

An npz file is a zip archive of arrays, each behind a header with its dtype and shape. The headers
are read first: one that asks for other bytes than the archive has, or for more than the memory
holds, is refused before anything is allocated. The bytes of a member are then read, and with that
compared to their checksum, before numpy sees them. So only damage is called damage; MemoryError
and mistakes of a program pass through.
"""

import io
import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, NamedTuple

import numpy as np
import psutil

from c2v_sim.system.text import in_bytes

# What zipfile raises on damaged archives (KeyError: no such member; RuntimeError: its flags say
# that it is encrypted, or compressed by a method that does not exist).
DAMAGED_ZIP = (
    *(zipfile.BadZipFile, zlib.error, EOFError, OSError, KeyError, ValueError, RuntimeError),
)
HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


class Header(NamedTuple):
    """What an array says that it is."""

    shape: tuple[int, ...]
    dtype: np.dtype

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"


def read_zip(
    path: str | os.PathLike[str], names: Sequence[str], most: float = math.inf
) -> Iterator[bytes]:
    """The contents of the members `names`; OSError where the file itself cannot be opened.

    most: bytes of a member; a few kilobytes of an archive can claim to be any number of them.
    """
    with _opened(path) as archive:
        for name in names:
            yield read_member(archive, name, most)


def read_member(archive: zipfile.ZipFile, name: str, most: float) -> bytes:
    """The content of a member of at most `most` bytes."""
    size = archive.getinfo(name).file_size
    if size > most:
        raise ValueError(f"{name} has {in_bytes(size)}, more than the {in_bytes(most)} expected")
    return archive.read(name)


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[zipfile.ZipFile]:
    with open(path, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                yield archive
        except DAMAGED_ZIP as error:
            why = error.args[0] if isinstance(error, KeyError) else error
            raise ValueError(str(why) or type(error).__name__) from error


def read_npz(
    path: str | os.PathLike[str],
    names: Sequence[str],
    check: Callable[[Mapping[str, Header]], None] = lambda headers: None,
) -> dict[str, np.ndarray]:
    """The arrays `names`; nothing in the file is executed.

    check: raises ValueError where the headers are not what the caller expects; called before any
    array is read.
    """
    check(npz_headers(path, names))
    contents = read_zip(path, [f"{name}.npy" for name in names])
    return {name: _array(content) for name, content in zip(names, contents, strict=True)}


def npz_headers(path: str | os.PathLike[str], names: Sequence[str]) -> dict[str, Header]:
    """Dtype and shape of the arrays `names`, which fit in the file and in the memory."""
    headers, total = {}, 0
    with _opened(path) as archive:
        for name in names:
            member = archive.getinfo(f"{name}.npy")
            with archive.open(member) as file:
                headers[name] = header = _header(file)
                size, rest = _bytes_of(header), member.file_size - file.tell()
            if size != rest:
                raise ValueError(
                    f"{name} says that it is {header}, which is {in_bytes(size)}, but "
                    f"{in_bytes(rest)} are there"
                )
            total += size
    free = psutil.virtual_memory().available
    if total > free:
        raise ValueError(f"its arrays need {in_bytes(total)} of memory; {in_bytes(free)} are free")
    return headers


def _header(file: IO[bytes]) -> Header:
    try:
        version = np.lib.format.read_magic(file)
        if version not in HEADER_READERS:
            raise ValueError(f"not an array of a known version: {version}")
        shape, _, dtype = HEADER_READERS[version](file)
    except tokenize.TokenError as error:  # all else is a ValueError already
        raise ValueError(f"not an array: {error}") from error
    if dtype.hasobject:
        raise ValueError("Object arrays cannot be loaded: they could run any code")
    return Header(shape, dtype)


def _bytes_of(header: Header) -> int:
    return math.prod(header.shape) * header.dtype.itemsize


def _array(content: bytes) -> np.ndarray:
    return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
