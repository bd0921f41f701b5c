"""Finds, downloads and reads Fashion-MNIST (Xiao et al. 2017): grey photos of ten kinds of clothes.

Enters: a folder. Leaves: x uint8 [60000, 28, 28, 1] for training and [10000, …] for tests, labels
int64, in the official order. The four published files are looked for, packed (.gz) or not, in the
folder itself, in its `fashion-mnist` and `FashionMNIST/raw` (torchvision's), and where Debian's
package dataset-fashion-mnist puts them; else they are downloaded into `fashion-mnist`.
Each begins with its magic number and its sizes, as 32-bit numbers, the largest byte first.
"""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from c2v_sim.data.dataset import Dataset, dataset_of
from c2v_sim.data.sources import shapes
from c2v_sim.data.sources.download import fetch
from c2v_sim.data.sources.source import Request, Source, first_samples
from c2v_sim.system.errors import DataError, Unreachable

URL = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
SYSTEM_FOLDER = Path("/usr/share/datasets/fashion-mnist")
SIDE = 28
FILES = {  # field: its file, samples, the MD5 of the official .gz
    "x_train": ("train-images-idx3-ubyte", 60_000, "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
    "y_train": ("train-labels-idx1-ubyte", 60_000, "25c81989df183df01b3e8a0aad5dffbe"),
    "x_test": ("t10k-images-idx3-ubyte", 10_000, "bef4ecab320f06d8554ea6380940ec79"),
    "y_test": ("t10k-labels-idx1-ubyte", 10_000, "bb300cfdad3c16e7a12a480ee83cd310"),
}
# The content hash of the whole data set, however it is packed.
SHA256 = "57fb30f5934d8878f91f0d109236b2b5693abc2ebf9e27f921b245d39b32343a"
CLASS_NAMES = (
    "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
    "ankle boot",
)  # fmt: skip
MEAN, STD = (0.2860,), (0.3530,)
PACKAGE = "Debian's package dataset-fashion-mnist"


def load(request: Request) -> Dataset:
    """The published images; anything else is refused."""
    folder = find(request.folder)
    source = PACKAGE if folder == SYSTEM_FOLDER else folder and folder.name
    if folder is None:
        folder, source = download(request.folder / "fashion-mnist", request.progress), URL
    dataset = dataset_of(
        {field: _tensor(field, folder) for field in FILES},
        name="fashion-mnist",
        class_names=CLASS_NAMES,
        mean=MEAN,
        std=STD,
        source=str(source),
    )
    if dataset.sha256 != SHA256:
        raise DataError(
            f"fashion-mnist: {folder} does not hold the published images: content hash "
            f"{dataset.sha256}, not {SHA256}; replace its files, or remove them to have the data "
            "downloaded"
        )
    return first_samples(dataset, request)


SOURCE = Source(
    "Fashion-MNIST",
    load,
    standin=shapes.stand_in("fashion-mnist"),
    remedy=f"place {', '.join(f'{name}.gz' for name, _, _ in FILES.values())} (from {URL}) in "
    f"{{folder}}, install {PACKAGE}, or name the folder that has them with --data-dir",
)


def find(data_dir: Path) -> Path | None:
    """The first folder that holds all four files, or None."""
    inside = (data_dir, data_dir / "fashion-mnist", data_dir / "FashionMNIST" / "raw")
    for folder in (*inside, SYSTEM_FOLDER):
        if all(_path(folder, name).exists() for name, _, _ in FILES.values()):
            return folder
    return None


def _path(folder: Path, name: str) -> Path:
    return folder / name if (folder / name).exists() else folder / f"{name}.gz"


def download(folder: Path, progress: bool) -> Path:
    """The official files in `folder`, each compared with its sum."""
    for name, _, md5 in FILES.values():
        try:
            fetch(f"{URL}{name}.gz", folder / f"{name}.gz", md5, progress=progress)
        except Unreachable as error:
            raise Unreachable(
                f"fashion-mnist is not in {folder.parent} and could not be downloaded ({error})"
            ) from error
    return folder


def _tensor(field: str, folder: Path) -> Tensor:
    name, count, _ = FILES[field]
    path = _path(folder, name)
    sizes = (count, SIDE, SIDE) if field.startswith("x") else (count,)
    try:
        array = read_idx(path, sizes)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(
            f"fashion-mnist: cannot read {path} (truncated or damaged?): {error}; replace it, or "
            "remove it to have the data downloaded"
        ) from error
    images = torch.from_numpy(array)
    return images[..., None] if field.startswith("x") else images.long()


def read_idx(path: Path, sizes: tuple[int, ...]) -> np.ndarray:
    """uint8 of the given sizes; ValueError where the file says or holds something else."""
    header = struct.Struct(f">{1 + len(sizes)}I")
    expected = int(np.prod(sizes))
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        start = file.read(header.size)
        content = file.read(expected + 1)  # no more than is needed, whatever was packed
    if len(start) < header.size or header.unpack(start) != (0x800 + len(sizes), *sizes):
        raise ValueError(f"it must begin as bytes of shape {sizes}, got {start.hex()}")
    if len(content) != expected:
        more = "more" if len(content) > expected else f"{len(content):,}"
        raise ValueError(f"it must hold {expected:,} bytes of samples, got {more}")
    return np.frombuffer(content, dtype=np.uint8).reshape(sizes).copy()
