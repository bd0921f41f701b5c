"""Stage 1: a data set's name -> images and labels as tensors, with where they came from.

Enters: a name from DATASETS and a folder. Leaves: a `Dataset` with images uint8 [N, H, W, 3] (a
batch permuted to [B, 3, H, W] is channels_last already) and labels int64 [N], on the CPU.

The content hash is SHA-256 over, for each array in the order x_train, y_train, x_test, y_test,
domain_train, domain_test (the last two where they exist): the line "<field> <dtype> <shape>\\n"
(for example "x_train uint8 50000x32x32x3\\n"), then its bytes in C order, integers little-endian.
"""

import hashlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from . import cifar10, pacs, shapes
from .atomic import replacing
from .download import DataError, Unreachable

__all__ = ["DATASETS", "DataError", "Dataset", "content_hash", "default_data_dir", "load_dataset"]

ARRAYS = ("x_train", "y_train", "x_test", "y_test", "domain_train", "domain_test")
SHAPES_TRAIN, SHAPES_TEST, SHAPES_SEED = 50_000, 10_000, 0
# The content hash of the complete CIFAR-10, whichever form it was read from.
CIFAR10_SHA256 = "de5362ef39c0d4f8c4007302c009b1161627baef1fa02c673bf5743e75f53cc3"


@dataclass(frozen=True, eq=False)  # equality of tensors is not a bool; compare sha256
class Dataset:
    """Images, labels and, where the data has them, domains (feature shift)."""

    name: str  # as every output must print it
    x_train: Tensor = field(repr=False)  # uint8 [N, H, W, C] or float32 [N, …]
    y_train: Tensor = field(repr=False)  # int64 [N]
    x_test: Tensor = field(repr=False)
    y_test: Tensor = field(repr=False)
    class_names: tuple[str, ...]
    mean: tuple[float, ...]  # of x / 255, per channel
    std: tuple[float, ...]
    source: str
    sha256: str  # see the module's docstring
    domain_train: Tensor | None = field(default=None, repr=False)  # int64 [N]
    domain_test: Tensor | None = field(default=None, repr=False)
    domain_names: tuple[str, ...] = ()
    standin_for: str | None = None

    @property
    def classes(self) -> int:
        return len(self.class_names)

    def __post_init__(self) -> None:
        for split in ("train", "test"):
            x: Tensor = getattr(self, f"x_{split}")
            images = x.dtype == torch.uint8 and x.ndim == 4
            if len(x) == 0 or not (images or (x.dtype == torch.float32 and x.ndim >= 2)):
                raise DataError(
                    f"{self.name}: x_{split} must be uint8 images [N, H, W, C] or float32 "
                    f"features [N, …] with N > 0, got {x.dtype} {tuple(x.shape)}"
                )
            self._check_labels(f"y_{split}", len(x), self.classes)
            if self.domain_names:
                self._check_labels(f"domain_{split}", len(x), len(self.domain_names))
        train, test = ((tuple(x.shape[1:]), x.dtype) for x in (self.x_train, self.x_test))
        if train != test:
            raise DataError(
                f"{self.name}: train samples are {train[0]} {train[1]}, "
                f"test samples {test[0]} {test[1]}; they must agree"
            )
        channels = self.x_train.shape[3] if images else 0
        if not len(self.mean) == len(self.std) == channels or min(self.std, default=1) <= 0:
            raise DataError(
                f"{self.name}: mean and std must have {channels} numbers and std be positive, "
                f"got {self.mean} and {self.std}"
            )

    def _check_labels(self, key: str, n: int, kinds: int) -> None:
        y = getattr(self, key)
        if y is None or y.dtype != torch.int64 or y.shape != (n,):
            got = None if y is None else f"{y.dtype} {tuple(y.shape)}"
            raise DataError(f"{self.name}: {key} must be int64 [{n}], got {got}")
        low, high = (int(v) for v in torch.aminmax(y))
        if low < 0 or high >= kinds:
            raise DataError(f"{self.name}: {key} must be in 0..{kinds - 1}, got {low}..{high}")


def content_hash(tensors: dict[str, Tensor]) -> str:
    """SHA-256 of the arrays as the module's docstring defines it; about 0.1 s per 200 MB."""
    digest = hashlib.sha256()
    for name in ARRAYS:
        if name in tensors:
            array = tensors[name].contiguous().numpy()
            array = array.astype(array.dtype.newbyteorder("<"), copy=False)
            digest.update(f"{name} {array.dtype.name} {'x'.join(map(str, array.shape))}\n".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def default_data_dir() -> Path:
    """$C2V_DATA, or the platform's user cache folder for c2v_sim."""
    return Path(os.environ.get("C2V_DATA") or platformdirs.user_cache_dir("c2v_sim"))


def load_dataset(
    name: str,
    *,
    data_dir: Path | None = None,
    require_real_data: bool = False,
    train_size: int | None = None,
    test_size: int | None = None,
    progress: bool = True,
) -> Dataset:
    """Load a data set by name.

    data_dir: where data is looked for, downloaded to and cached (default: `default_data_dir()`).
    require_real_data: raise DataError instead of using a stand-in when a download fails.
    train_size, test_size: number of images; `shapes` renders any number (default 50,000 and
        10,000), `cifar10` takes the first so many in the official order (default all), `pacs` in
        the mixed order that its module describes.
    progress: show progress bars on stderr. Warnings and the stand-in banner are always shown.
    """
    if name not in DATASETS:
        raise DataError(f"unknown data set {name!r}; known: {', '.join(DATASETS)}")
    for key, size in (("train_size", train_size), ("test_size", test_size)):
        if size is not None and size < 1:
            raise DataError(f"{name}: {key} must be at least 1, got {size}")
    folder = (Path(data_dir) if data_dir else default_data_dir()).expanduser()
    if os.path.isfile(folder):
        raise DataError(f"{name}: the data folder {folder} is a file; give a folder (--data-dir)")
    return DATASETS[name](folder, require_real_data, train_size, test_size, progress)


# ---- shapes ---------------------------------------------------------------------------------


def _load_shapes(
    folder: Path,
    require_real_data: bool = False,  # rendered data is what was asked for: nothing to require
    train_size: int | None = None,
    test_size: int | None = None,
    progress: bool = True,
    standin_for: str | None = None,
) -> Dataset:
    sizes = {"train": train_size or SHAPES_TRAIN, "test": test_size or SHAPES_TEST}
    recipe = f"shapes-v{shapes.RENDERER_VERSION}-{SHAPES_SEED}-{sizes['train']}-{sizes['test']}"
    path = folder / f"{recipe}.safetensors"
    cached = _read_cache(path)
    if cached is None:
        if progress:
            print(f"rendering {sum(sizes.values()):,} shapes images (once)", file=sys.stderr)
        tensors: dict[str, Tensor] = {}
        for split, n in sizes.items():
            x, y, domain = (torch.from_numpy(a) for a in shapes.render(split, n, SHAPES_SEED))
            tensors |= {f"x_{split}": x, f"y_{split}": y, f"domain_{split}": domain}
        cached = tensors, content_hash(tensors)
        _write_cache(path, *cached)
    return Dataset(
        name=f"{standin_for}-standin(shapes)" if standin_for else "shapes",
        class_names=shapes.CLASS_NAMES,
        domain_names=shapes.DOMAIN_NAMES,
        mean=shapes.MEAN,
        std=shapes.STD,
        source=f"rendered by c2v_sim ({recipe})",
        sha256=cached[1],
        standin_for=standin_for,
        **cached[0],
    )


def _read_cache(path: Path) -> tuple[dict[str, Tensor], str] | None:
    """Cached tensors whose bytes match the hash stored with them; a damaged file counts as none."""
    if not os.path.exists(path):
        return None
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            expected = (file.metadata() or {}).get("sha256")
        tensors = load_file(path)
        if content_hash(tensors) == expected:
            return tensors, expected
        why = "its bytes do not match their hash"
    except (OSError, safetensors.SafetensorError) as error:
        why = str(error)
    print(f"warning: cached data {path} cannot be used ({why}); making it anew", file=sys.stderr)
    return None


def _write_cache(path: Path, tensors: dict[str, Tensor], sha256: str) -> None:
    """Atomic; data that cannot be cached is still good data, so failure is only a warning."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, shared=True) as temporary:
            save_file(tensors, temporary, metadata={"sha256": sha256})
    except (OSError, safetensors.SafetensorError) as error:
        print(
            f"warning: cannot cache the data in {path.parent} ({error}); "
            "every run will make it anew (choose another folder with --data-dir)",
            file=sys.stderr,
        )


# ---- cifar10 --------------------------------------------------------------------------------


def _load_cifar10(
    folder: Path,
    require_real_data: bool,
    train_size: int | None,
    test_size: int | None,
    progress: bool,
) -> Dataset:
    try:
        arrays, source = cifar10.find(folder) or cifar10.download(folder, progress)
    except Unreachable as reason:
        missing = f"cifar10 is not in {folder} and could not be downloaded ({reason})"
        remedy = (
            f"place cifar-10-python.tar.gz (from {cifar10.URL}) or cifar10.npz in {folder}, "
            "or name the folder that has it with --data-dir"
        )
        if require_real_data:
            raise DataError(f"{missing}; {remedy}") from reason
        print(
            f"STAND-IN DATA: {missing}, so this run uses rendered shapes instead and its results "
            f"say nothing about CIFAR-10; to get the real data, {remedy}.",
            file=sys.stderr,
        )
        return _load_shapes(folder, False, train_size, test_size, progress, "cifar10")
    tensors: dict[str, Any] = {
        key: torch.from_numpy(array.astype(np.int64) if key.startswith("y") else array)
        for key, array in arrays._asdict().items()
    }
    sha256 = content_hash(tensors)
    if sha256 != CIFAR10_SHA256:
        wrong = cifar10.wrong_batches(arrays) or f"content hash {sha256}, not {CIFAR10_SHA256}"
        raise DataError(
            f"cifar10: {source} in {folder} is not the published CIFAR-10: {wrong}; "
            "replace it, or remove it to have the data downloaded"
        )
    cut = [_take_first(tensors, "train", train_size), _take_first(tensors, "test", test_size)]
    return Dataset(
        name="cifar10",
        class_names=cifar10.CLASS_NAMES,
        mean=cifar10.MEAN,
        std=cifar10.STD,
        source="".join([source, *cut]),
        sha256=content_hash(tensors) if any(cut) else sha256,
        **tensors,
    )


def _take_first(
    tensors: dict[str, Tensor], split: str, size: int | None, name: str = "cifar10"
) -> str:
    """Cut a split to its first images, in place; what was done, as a note for the source."""
    whole = len(tensors[f"y_{split}"])
    if size is None or size == whole:
        return ""
    if size > whole:
        raise DataError(f"{name}: {split}_size must be at most {whole}, got {size}")
    for key in [key for key in tensors if key.endswith(f"_{split}")]:
        tensors[key] = tensors[key][:size].clone()  # so that the rest can be freed
    return f", first {size} of {whole} {split} images"


# ---- pacs -----------------------------------------------------------------------------------


def _load_pacs(
    folder: Path,
    require_real_data: bool,
    train_size: int | None,
    test_size: int | None,
    progress: bool,
) -> Dataset:
    found = pacs.find(folder, progress)
    if found is None:
        missing = f"pacs is not in {folder}, and it cannot be downloaded by program"
        remedy = f"place there {pacs.REMEDY}, or name the folder that has them with --data-dir"
        if require_real_data:
            raise DataError(f"{missing}; {remedy}")
        print(
            f"STAND-IN DATA: {missing}, so this run uses rendered shapes (six domains) instead and "
            f"its results say nothing about PACS; to get the real data, {remedy}.",
            file=sys.stderr,
        )
        return _load_shapes(folder, False, train_size, test_size, progress, "pacs")
    tensors: dict[str, Any] = found[0]
    cut = [
        _take_first(tensors, split, size, "pacs")
        for split, size in (("train", train_size), ("test", test_size))
    ]
    return Dataset(
        name="pacs",
        class_names=pacs.CLASS_NAMES,
        domain_names=pacs.DOMAIN_NAMES,
        mean=pacs.MEAN,
        std=pacs.STD,
        source="".join([found[1], *cut]),
        sha256=content_hash(tensors),
        **tensors,
    )


DATASETS: dict[str, Callable[..., Dataset]] = {
    "shapes": _load_shapes,
    "cifar10": _load_cifar10,
    "pacs": _load_pacs,
}
