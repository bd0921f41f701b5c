"""Tensors in a safetensors file that is whole or absent, and says so when its bytes have changed.

The checksum (SHA-256 over name, dtype, shape and bytes of every tensor, or what the caller takes in
its place) is stored in the file. `cached` is for tensors that can be made anew.
"""

import errno
import hashlib
import re
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from c2v_sim.system.files import replacing

Tensors = dict[str, Tensor]


def checksum(tensors: Tensors) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def opened(path: Path | str) -> safe_open:
    """A file to read from; OSError says why it cannot be opened: safetensors says of every reason
    that there is no such file."""
    open(path, "rb").close()
    return safe_open(str(path), framework="pt")


def read(path: Path, digest: Callable[[Tensors], str] = checksum) -> Tensors | None:
    """The tensors; None if there is no file, or (with a notice) if it is damaged."""
    try:
        with safe_open(str(path), framework="pt") as file:
            expected = (file.metadata() or {}).get("sha256")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if digest(tensors) == expected:
            return tensors
        why = "its bytes do not match their checksum"
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, SafetensorError) as error:
        why = str(error)
    print(f"warning: the cache {path} is damaged ({why}); making it anew", file=sys.stderr)
    return None


def save(path: Path, tensors: Tensors, about: dict[str, str], *, shared: bool = False) -> None:
    """Atomically, with the texts `about`; raises OSError where the file cannot be written.

    shared: other processes may write the same file at the same time (`replacing`).
    """
    with replacing(path, shared=shared) as temporary:
        try:
            save_file(tensors, temporary, metadata=about)
        except SafetensorError as error:  # a full disk, for example: its number is in the text
            found = re.search(r"os error (\d+)", str(error))
            number = int(found[1]) if found else errno.EIO
            raise OSError(number, str(error), str(path)) from error


def write(path: Path, tensors: Tensors, digest: Callable[[Tensors], str] = checksum) -> None:
    """A cache file, with its checksum; raises OSError where the folder cannot be written."""
    save(path, tensors, {"sha256": digest(tensors)}, shared=True)


def cached(
    path: Path, make: Callable[[], Tensors], digest: Callable[[Tensors], str] = checksum
) -> Tensors:
    """What `path` holds, or what `make` gives, which is then kept there for the next time.

    Data that cannot be kept is still good data, so that is only a warning.
    """
    kept = read(path, digest)
    if kept is not None:
        return kept
    tensors = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, tensors, digest)
    except OSError as error:
        print(
            f"warning: cannot cache the data in {path.parent} ({error}); every run will make it "
            "anew (choose another folder with --data-dir)",
            file=sys.stderr,
        )
    return tensors
