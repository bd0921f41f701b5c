"""A folder of images for each client → arrays with a client name for each sample.

Enters: root/<client>/<class>/<image>, or root/<client>/{train,test}/<class>/<image>. Leaves:
images uint8 [N, H, W, 3], classes int64 [N] (numbered by sorted folder name, over all clients) and
client names [N]. Names that begin with a dot, and files that are not images, are passed over.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from c2v_sim.data.sources.image_files import DAMAGED_IMAGE, SUFFIXES, decode_all
from c2v_sim.system.errors import DataError

SPLITS = ("train", "test")


@dataclass(frozen=True)
class FolderImages:
    """Training and, where given, test samples."""

    x: np.ndarray  # uint8 [N, H, W, 3]
    y: np.ndarray  # int64 [N]
    of: np.ndarray  # client names [N]
    class_names: tuple[str, ...]
    x_test: np.ndarray | None = None
    y_test: np.ndarray | None = None
    of_test: np.ndarray | None = None


Files = list[tuple[str, str, Path]]  # client, class, image


def read(root: Path, size: tuple[int, int] | None = None, progress: bool = True) -> FolderImages:
    """Decode the tree; DataError says which folder or file is not as expected."""
    train, test = _files(root)
    class_names = tuple(sorted({name for _, name, _ in train + test}))
    size = size or _common_size(train + test)
    x, y, of = _decode(train, class_names, size, progress)
    if not test:
        return FolderImages(x, y, of, class_names)
    return FolderImages(x, y, of, class_names, *_decode(test, class_names, size, progress))


def _files(root: Path) -> tuple[Files, Files]:
    """Images of the training (or only) and of the test part."""
    clients = _folders(root)
    if not clients:
        raise DataError(f"from_image_folders: {root} must hold a folder for each client")
    divided = [client for client in clients if (client / "train").is_dir()]
    if divided and len(divided) < len(clients):
        other = next(client for client in clients if client not in divided)
        raise DataError(
            f"from_image_folders: {divided[0]} has a folder `train` and {other} has none; all "
            "clients need train/ and test/, or none"
        )
    if not divided:
        return _images(clients, "."), []
    train, test = _images(clients, "train"), _images(clients, "test")
    if not test:
        raise DataError(f"from_image_folders: no client in {root} has images under test/<class>/")
    return train, test


def _images(clients: list[Path], part: str) -> Files:
    found: Files = []
    for client in clients:
        before = len(found)
        for folder in _folders(client / part):
            images = (file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES)
            found += [(client.name, folder.name, file) for file in sorted(images)]
        if len(found) == before and part != "test":  # a client may be without test images
            raise DataError(
                f"from_image_folders: client {client} has no image under "
                f"{'train/' if part == 'train' else ''}<class>/ ({', '.join(SUFFIXES)})"
            )
    return found


def _folders(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    return sorted(p for p in parent.iterdir() if p.is_dir() and not p.name.startswith("."))


def _common_size(files: Files) -> tuple[int, int]:
    """(H, W) of the images, which must agree; only their headers are read."""
    sizes: dict[tuple[int, int], Path] = {}
    for _, _, path in files:
        try:
            with Image.open(path) as image:
                sizes.setdefault((image.height, image.width), path)
        except DAMAGED_IMAGE as error:
            raise DataError(f"from_image_folders: cannot read {path}: {error}") from error
        if len(sizes) > 1:
            (one, first), (other, second) = list(sizes.items())
            raise DataError(
                f"from_image_folders: {first} is {one[0]}×{one[1]} and {second} {other[0]}×"
                f"{other[1]}; give size=(H, W) to resize all images"
            )
    return next(iter(sizes))


def _decode(
    files: Files, class_names: tuple[str, ...], size: tuple[int, int], progress: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    number = {name: k for k, name in enumerate(class_names)}
    paths = [str(path) for _, _, path in files]
    try:
        x = decode_all(paths, lambda path: Path(path).read_bytes(), size, "images", progress)
    except DataError as error:
        raise DataError(f"from_image_folders: cannot read {error}") from error
    y = np.array([number[name] for _, name, _ in files], dtype=np.int64)
    return x, y, np.array([client for client, _, _ in files])
