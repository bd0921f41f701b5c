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
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from c2v_sim.data.dataset import Dataset, dataset_of
from c2v_sim.data.sources import shapes
from c2v_sim.data.sources.image_files import decode_all
from c2v_sim.data.sources.source import Request, Source
from c2v_sim.system import tensor_file
from c2v_sim.system.archive import DAMAGED_ZIP, read_member
from c2v_sim.system.errors import DataError, Unreachable
from c2v_sim.system.seeding import CLASSES, rng

DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
SPLITS = ("train", "test")
ALL_CLASSES, CHOSEN_CLASSES = 345, 50
SIZE = (64, 64)
MOST_BYTES = 2**27  # of an image file
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet
PAGE = "http://ai.bu.edu/M3SDA/"
FORMAT = "1"  # of the decoded files: another decoder or size needs another number


REMEDY = (
    f"place the six archives (cleaned version) and the list files of {PAGE} in {{folder}}/domainnet"
    ", or name the folder that holds `domainnet` with --data-dir"
)


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


def load(request: Request) -> Dataset:
    """The chosen classes; data that was begun and is not complete is refused."""
    own = request.folder / "domainnet"
    if missing := missing_files(own):
        absent = f"domainnet is not complete in {own}: no {', '.join(missing)}"
        if own.is_dir() and any(own.iterdir()):  # so it is meant
            raise DataError(f"{absent}; {REMEDY.format(folder=request.folder)}")
        raise Unreachable(absent)
    if request.train_size or request.test_size:
        raise DataError("domainnet: train_size and test_size are for shapes and cifar10")
    return read(own, request.seed, request.progress)


SOURCE = Source(
    "DomainNet", load, standin=shapes.stand_in("domainnet"), remedy=REMEDY, chosen_by_seed=True
)


def read(folder: Path, seed: int, progress: bool = True) -> Dataset:
    """Read the chosen classes; DataError names what is damaged, incomplete or inconsistent."""
    chosen = chosen_classes(seed)
    parts: dict[str, list[Tensor]] = {}
    names: dict[int, str] = {}
    for number, domain in enumerate(DOMAINS):
        lists = {split: read_list(folder / f"{domain}_{split}.txt") for split in SPLITS}
        lists = {split: lines.of(chosen) for split, lines in lists.items()}
        images = _domain_images(folder, domain, lists, progress)
        for split, lines in lists.items():
            _collect_names(names, lines, f"{domain}_{split}.txt")
            labels = torch.from_numpy(np.searchsorted(chosen, lines.labels))
            parts.setdefault(f"x_{split}", []).append(images[split])
            parts.setdefault(f"y_{split}", []).append(labels)
            parts.setdefault(f"domain_{split}", []).append(torch.full_like(labels, number))
    places = ", ".join(_place(folder, domain).name for domain in DOMAINS)
    return dataset_of(
        {key: torch.cat(tensors) for key, tensors in parts.items()},
        name="domainnet",
        class_names=tuple(names.get(label, f"class {label}") for label in chosen.tolist()),
        domain_names=DOMAINS,
        mean=MEAN,
        std=STD,
        source=f"{places}; {CHOSEN_CLASSES} of {ALL_CLASSES} classes by seed {seed}",
    )


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
    return tensor_file.cached(cache, lambda: _decode(folder, domain, paths, progress))


def _decode(
    folder: Path, domain: str, paths: dict[str, list[str]], progress: bool
) -> dict[str, Tensor]:
    with _reader(folder, domain, paths["train"] + paths["test"]) as read:
        images = {}
        for split in SPLITS:
            try:
                x = decode_all(paths[split], read, SIZE, f"{domain} {split}", progress)
            except DataError as error:  # names the image
                raise _damaged(_place(folder, domain), error) from error
            images[split] = torch.from_numpy(x)
        return images


@contextmanager
def _reader(folder: Path, domain: str, paths: list[str]) -> Iterator[Callable[[str], bytes]]:
    """path → content, from the unpacked folder or the archive, which must hold all `paths`."""
    place = _place(folder, domain)
    if place.suffix != ".zip":
        absent = [path for path in paths if not (folder / path).is_file()]
        _refuse_absent(place, absent, len(paths))
        yield lambda path: (folder / path).read_bytes()
        return
    try:
        archive = zipfile.ZipFile(place)
    except DAMAGED_ZIP as error:
        raise _damaged(place, error) from error
    with archive:
        members = set(archive.namelist())
        _refuse_absent(place, [path for path in paths if path not in members], len(paths))
        # Called from several threads, which an archive allows.
        yield lambda path: read_member(archive, path, MOST_BYTES)


def _place(folder: Path, domain: str) -> Path:
    """Where the images of a domain are: unpacked, or in the archive."""
    return folder / domain if (folder / domain).is_dir() else folder / f"{domain}.zip"


def _damaged(place: Path, error: Exception) -> DataError:
    remedy = "fetch it again" if place.suffix == ".zip" else "unpack it again"
    return DataError(f"domainnet: {place} is incomplete or damaged ({error}); {remedy} from {PAGE}")


def _refuse_absent(place: Path, absent: list[str], listed: int) -> None:
    if absent:
        raise DataError(
            f"domainnet: {place} lacks {len(absent)} of {listed} listed images, the first is "
            f"{absent[0]}; it is incomplete, or not of the same version as the list files"
        )
