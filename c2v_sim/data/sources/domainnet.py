"""DomainNet (Peng et al. 2019): six domains of the same 345 classes, 50 of them by seed.

Enters: a folder with, for each domain, the list files `<domain>_train.txt`, `<domain>_test.txt`
(lines `relative/path.jpg label`) and the images, as `<domain>.zip` or unpacked as `<domain>/`.
Leaves: images uint8 [N, 64, 64, 3] (bilinear), labels 0..49 and domains 0..5, in the order of the
domains and, inside one, of its list.

A domain is decoded once and kept as a file in the same folder. Its name holds a hash of the chosen
classes and the lists, so other classes or lists never meet it, and what an interrupted run has
finished is not decoded again.
"""

import hashlib
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from c2v_sim.data.sources.image_files import decode_all
from c2v_sim.system import tensor_file
from c2v_sim.system.errors import DataError
from c2v_sim.system.seeding import CLASSES, rng

DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
SPLITS = ("train", "test")
ALL_CLASSES, CHOSEN_CLASSES = 345, 50
SIZE = (64, 64)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
PAGE = "http://ai.bu.edu/M3SDA/"
FORMAT = "1"  # of the decoded files: another decoder or size needs another number


class Images(NamedTuple):
    """The chosen classes of all domains."""

    tensors: dict[str, Any]  # x_, y_ and domain_ of train and test
    class_names: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class Lines:
    """One list file: image paths and their original labels 0..344."""

    paths: list[str]
    labels: np.ndarray  # int64 [n]

    def of(self, chosen: np.ndarray) -> "Lines":
        keep = np.flatnonzero(np.isin(self.labels, chosen))
        return Lines([self.paths[i] for i in keep], self.labels[keep])


def chosen_classes(seed: int) -> np.ndarray:
    """Original labels of the classes that take part, ascending."""
    return np.sort(rng(seed, CLASSES).choice(ALL_CLASSES, CHOSEN_CLASSES, replace=False))


def missing_files(folder: Path) -> list[str]:
    """List files that are not there, and archives of domains neither unpacked nor decoded."""
    lists = [f"{domain}_{split}.txt" for domain in DOMAINS for split in SPLITS]
    archives = [
        f"{domain}.zip"
        for domain in DOMAINS
        if not (folder / domain).is_dir() and not any(folder.glob(f"decoded-{domain}-*"))
    ]
    return [name for name in lists + archives if not (folder / name).is_file()]


def load(folder: Path, seed: int, progress: bool = True) -> Images:
    """Read the chosen classes; DataError names what is damaged, incomplete or inconsistent."""
    chosen = chosen_classes(seed)
    parts: dict[str, list[Tensor]] = {}
    names: dict[int, str] = {}
    places = []
    for number, domain in enumerate(DOMAINS):
        lists = {split: read_list(folder / f"{domain}_{split}.txt") for split in SPLITS}
        lists = {split: lines.of(chosen) for split, lines in lists.items()}
        images = _domain_images(folder, domain, lists, progress)
        places.append(domain if (folder / domain).is_dir() else f"{domain}.zip")
        for split, lines in lists.items():
            _collect_names(names, lines, f"{domain}_{split}.txt")
            labels = torch.from_numpy(np.searchsorted(chosen, lines.labels))
            parts.setdefault(f"x_{split}", []).append(images[split])
            parts.setdefault(f"y_{split}", []).append(labels)
            parts.setdefault(f"domain_{split}", []).append(torch.full_like(labels, number))
    tensors = {key: torch.cat(tensors) for key, tensors in parts.items()}
    class_names = tuple(names.get(label, f"class {label}") for label in chosen.tolist())
    source = f"{', '.join(places)}; {CHOSEN_CLASSES} of {ALL_CLASSES} classes by seed {seed}"
    return Images(tensors, class_names, source)


def read_list(path: Path) -> Lines:
    """Parse a list file; DataError names the line that is something else."""
    paths, labels = [], []
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"domainnet: cannot read {path}: {error}") from error
    for number, line in enumerate(lines, 1):
        name, _, label = line.strip().rpartition(" ")
        if not line.strip():
            continue
        if not name or not label.isdecimal() or int(label) >= ALL_CLASSES:
            raise DataError(
                f"domainnet: {path} line {number} must be 'path label' with a label in "
                f"0..{ALL_CLASSES - 1}, got {line!r}"
            )
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise DataError(f"domainnet: {path} line {number} points outside the folder: {name!r}")
        paths.append(name)
        labels.append(int(label))
    return Lines(paths, np.array(labels, dtype=np.int64))


def _collect_names(names: dict[int, str], lines: Lines, file: str) -> None:
    """A class is called by the folder of its images, the same one everywhere."""
    for path, label in zip(lines.paths, lines.labels.tolist(), strict=True):
        name = Path(path).parent.name
        if names.setdefault(label, name) != name:
            raise DataError(
                f"domainnet: {file} has {path} as class {label}, which is {names[label]!r} "
                "elsewhere; the list files do not belong together"
            )


def _domain_images(
    folder: Path, domain: str, lists: dict[str, Lines], progress: bool
) -> dict[str, Tensor]:
    """Images of the domain's lists, uint8 [n, 64, 64, 3] each, from the cache or decoded now."""
    paths = {split: lines.paths for split, lines in lists.items()}
    if not paths["train"]:
        raise DataError(
            f"domainnet: {domain}_train.txt in {folder} lists no image of the chosen classes"
        )
    key = hashlib.sha256(repr((FORMAT, SIZE, sorted(paths.items()))).encode()).hexdigest()
    cache = folder / f"decoded-{domain}-{key[:16]}.safetensors"
    images = tensor_file.read(cache)
    if images is not None:
        return images
    with _reader(folder, domain, paths["train"] + paths["test"]) as read:
        images = {
            split: torch.from_numpy(
                decode_all(paths[split], read, SIZE, f"{domain} {split}", progress)
            )
            for split in SPLITS
        }
    try:
        tensor_file.write(cache, images)
    except OSError as error:
        print(
            f"warning: cannot keep the decoded images in {folder} ({error}); every run will "
            "decode them anew",
            file=sys.stderr,
        )
    return images


@contextmanager
def _reader(folder: Path, domain: str, paths: list[str]) -> Iterator[Callable[[str], bytes]]:
    """path → content, from the unpacked folder or the archive; damage names the place."""
    place = folder / domain if (folder / domain).is_dir() else folder / f"{domain}.zip"
    remedy = "fetch it again" if place.suffix == ".zip" else "unpack it again"
    try:
        if place.suffix != ".zip":
            absent = [path for path in paths if not (folder / path).is_file()]
            _refuse_absent(place, absent, len(paths))
            yield lambda path: (folder / path).read_bytes()
            return
        with zipfile.ZipFile(place) as archive:
            members = set(archive.namelist())
            _refuse_absent(place, [path for path in paths if path not in members], len(paths))
            yield archive.read  # may be called from several threads
    except DataError:
        raise
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, ValueError) as error:
        raise DataError(
            f"domainnet: {place} is incomplete or damaged ({error}); {remedy} from {PAGE}"
        ) from error


def _refuse_absent(place: Path, absent: list[str], listed: int) -> None:
    if absent:
        raise DataError(
            f"domainnet: {place} lacks {len(absent)} of {listed} listed images, the first is "
            f"{absent[0]}; it is incomplete, or not of the same version as the list files"
        )
