"""What is in zip archives and npz files, of which some are damaged: ValueError says how.

An npz file is a zip archive of arrays. The bytes of a member are read, and with that compared to
their checksum, before numpy sees them: a damaged header could ask it for any amount of memory. So
only damage is called damage; MemoryError and mistakes of a program pass through.
"""

import io
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Sequence

import numpy as np

# What zipfile raises on damaged archives (KeyError: no such member; RuntimeError: its flags say
# that it is encrypted, or compressed by a method that does not exist).
DAMAGED_ZIP = (
    *(zipfile.BadZipFile, zlib.error, EOFError, OSError, KeyError, ValueError, RuntimeError),
)


def read_zip(path: str | os.PathLike[str], names: Sequence[str]) -> Iterator[bytes]:
    """The contents of the members `names`; OSError where the file itself cannot be opened."""
    with open(path, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                for name in names:
                    yield archive.read(name)
        except DAMAGED_ZIP as error:
            why = error.args[0] if isinstance(error, KeyError) else error
            raise ValueError(str(why) or type(error).__name__) from error


def read_npz(path: str | os.PathLike[str], names: Sequence[str]) -> dict[str, np.ndarray]:
    """The arrays `names`; nothing in the file is executed."""
    contents = read_zip(path, [f"{name}.npy" for name in names])
    return {name: _array(content) for name, content in zip(names, contents, strict=True)}


def _array(content: bytes) -> np.ndarray:
    try:
        return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
    except tokenize.TokenError as error:  # of a header; all else is a ValueError already
        raise ValueError(f"not an array: {error}") from error
