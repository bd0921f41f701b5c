"""Finds and reads PACS (Li et al. 2017): photos, paintings, cartoons and sketches of 7 things.

Enters: a folder with `pacs64.npz` (x uint8 [9991, 64, 64, 3], label, domain, names, class_names,
domain_names), or a tree <domain>/<class>/<image>.jpg or .png, in the folder itself or in its
`PACS`. Leaves: x_train, y_train, domain_train uint8 [N, 64, 64, 3] and int64 [N], the same for
test, and what they were read from. A tree's images are decoded once and kept beside it.

PACS has no test part of its own here, so the split is ours: of each domain and class the fifth
(rounded down) whose names "<domain>/<class>/<file>" have the smallest SHA-256 is for testing.
Both parts are in the order of these hashes, so that their beginnings are fair samples of them. It
depends on nothing but the names: neither on the form of the data nor on a random generator.
"""

import hashlib
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from c2v_sim.data.dataset import Dataset, dataset_of
from c2v_sim.data.sources import shapes
from c2v_sim.data.sources.image_files import decode_all
from c2v_sim.data.sources.source import Request, Source, first_samples
from c2v_sim.system import archive, tensor_file
from c2v_sim.system.errors import DataError, Unreachable

SIDE = 64
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, as is usual with PACS
DOMAIN_NAMES = ("photo", "art_painting", "cartoon", "sketch")
CLASS_NAMES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
# Images of each class in each domain, as published: 9,991 in all.
COUNTS = {
    "photo": (189, 202, 182, 186, 199, 280, 432),
    "art_painting": (379, 255, 285, 184, 201, 295, 449),
    "cartoon": (389, 457, 346, 135, 324, 288, 405),
    "sketch": (772, 740, 753, 608, 816, 80, 160),
}
NPZ_ARRAYS = ("x", "label", "domain", "names", "class_names", "domain_names")
SUFFIXES = (".jpg", ".jpeg", ".png")
CACHE_VERSION = 1  # raise it whenever decoding, resampling or the split changes
REMEDY = (
    "pacs64.npz, or the folders photo, art_painting, cartoon and sketch with one folder of images "
    "per class"
)


def load(request: Request) -> Dataset:
    """The published images, or the first of them in the mixed order."""
    found = find(request.folder, request.progress)
    if found is None:
        raise Unreachable(
            f"pacs is not in {request.folder}, and it cannot be downloaded by program"
        )
    dataset = dataset_of(
        found[0],
        name="pacs",
        class_names=CLASS_NAMES,
        domain_names=DOMAIN_NAMES,
        mean=MEAN,
        std=STD,
        source=found[1],
    )
    return first_samples(dataset, request)


SOURCE = Source(
    "PACS",
    load,
    standin=shapes.stand_in("pacs", "rendered shapes (six domains)"),
    remedy=f"place there {REMEDY}, or name the folder that has them with --data-dir",
)


def find(data_dir: Path, progress: bool = True) -> tuple[dict[str, Tensor], str] | None:
    """The arrays and their source, or None where there is no PACS; damage is an error."""
    npz = data_dir / "pacs64.npz"
    if npz.exists():
        return _split(*read_npz(npz)), "pacs64.npz, split 80/20 by hash of name"
    roots = [data_dir / "PACS", data_dir / "pacs"]
    roots += [data_dir] if (data_dir / "art_painting").is_dir() else []
    for root in roots:
        if root.is_dir():
            return _from_tree(root, data_dir, progress)
    return None


def read_npz(path: Path) -> tuple[np.ndarray, list[str]]:
    """Images uint8 [N, 64, 64, 3] and their names "<domain>/<class>/<file>"."""
    try:
        arrays = archive.read_npz(path, NPZ_ARRAYS)
        x, names = arrays["x"], [str(name) for name in arrays["names"].ravel()]
        if x.dtype != np.uint8 or x.shape != (len(names), SIDE, SIDE, 3):
            expected = f"uint8 [{len(names)}, {SIDE}, {SIDE}, 3]"
            raise ValueError(f"x must be {expected}, got {x.dtype} {x.shape}")
        kinds = _names_of(arrays["domain"], arrays["domain_names"], len(names))
        things = _names_of(arrays["label"], arrays["class_names"], len(names))
    except (OSError, ValueError) as error:
        raise DataError(
            f"pacs: cannot read {path} (truncated or damaged?): {error}; replace it"
        ) from error
    told = [f"{kind}/{thing}" for kind, thing in zip(kinds, things, strict=True)]
    for name, cell in zip(names, told, strict=True):
        if not name.startswith(f"{cell}/"):
            raise DataError(f"pacs: {path} calls {name} a {cell}; replace the file")
    _check_counts(names, path)
    return x, names


def _names_of(numbers: np.ndarray, names: np.ndarray, count: int) -> list[str]:
    """The names that `numbers` [count] mean."""
    whole = numbers.dtype.kind in "iu" and numbers.shape == (count,) and names.ndim == 1
    if not whole or numbers.min(initial=0) < 0 or numbers.max(initial=0) >= len(names):
        raise ValueError(
            f"labels and domains must be [{count}] whole numbers below {names.size}, got "
            f"{numbers.dtype} {numbers.shape}"
        )
    return [str(name) for name in names[numbers]]


def _check_counts(names: list[str], path: Path) -> None:
    found = Counter(name.rpartition("/")[0] for name in names)
    wrong = [
        f"{domain}/{kind} has {found[f'{domain}/{kind}']} of {count}"
        for domain, counts in COUNTS.items()
        for kind, count in zip(CLASS_NAMES, counts, strict=True)
        if found[f"{domain}/{kind}"] != count
    ]
    if wrong:
        more = f" and {len(wrong) - 3} more such" if len(wrong) > 3 else ""
        raise DataError(
            f"pacs: {path} does not hold the published images: {', '.join(wrong[:3])}{more}; "
            f"replace it with the whole data set: {REMEDY}"
        )


def _split(x: np.ndarray, names: list[str]) -> dict[str, Tensor]:
    """Deal images to train and test as the module's docstring says."""
    order = sorted(range(len(names)), key=lambda i: hashlib.sha256(names[i].encode()).digest())
    cells = [name.rpartition("/")[0] for name in names]
    left = {cell: count // 5 for cell, count in Counter(cells).items()}  # test places
    parts: dict[str, list[int]] = {"train": [], "test": []}
    for i in order:
        left[cells[i]] -= 1
        parts["test" if left[cells[i]] >= 0 else "train"].append(i)
    arrays = {}
    for part, ids in parts.items():
        words = [names[i].split("/") for i in ids]
        arrays[f"x_{part}"] = torch.from_numpy(x[ids])
        arrays[f"y_{part}"] = torch.tensor([CLASS_NAMES.index(word[1]) for word in words])
        arrays[f"domain_{part}"] = torch.tensor([DOMAIN_NAMES.index(word[0]) for word in words])
    return arrays


def _from_tree(root: Path, data_dir: Path, progress: bool) -> tuple[dict[str, Tensor], str]:
    names = sorted(
        f"{domain}/{kind}/{path.name}"
        for domain in DOMAIN_NAMES
        for kind in CLASS_NAMES
        for path in (root / domain / kind).glob("[!.]*")
        if path.suffix.lower() in SUFFIXES
    )
    _check_counts(names, root)
    # A changed, added or removed file changes the name of the cache.
    digest = hashlib.sha256(f"{CACHE_VERSION}\n".encode())
    for name in names:
        status = (root / name).stat()
        digest.update(f"{name} {status.st_size} {status.st_mtime_ns}\n".encode())
    path = data_dir / f"pacs{SIDE}-{digest.hexdigest()[:16]}.safetensors"
    arrays = tensor_file.cached(path, lambda: _split(decode(root, names, progress), names))
    return arrays, f"{len(names)} images, bilinear to {SIDE}×{SIDE}, split 80/20 by hash of name"


def decode(root: Path, names: list[str], progress: bool = True) -> np.ndarray:
    """uint8 [N, 64, 64, 3] of the named files, in parallel; a damaged one is named and refused."""
    paths = [str(root / name) for name in names]
    try:
        return decode_all(
            paths,
            lambda path: Path(path).read_bytes(),
            (SIDE, SIDE),
            "decode PACS (once)",
            progress,
        )
    except DataError as error:
        raise DataError(
            f"pacs: cannot decode {error} (truncated or damaged?); replace it"
        ) from error
