"""Stage 1: a data set's name -> images and labels as tensors, with where they came from.

Enters: a name from DATASETS and a folder. Leaves: a `Dataset` with images uint8 [N, H, W, 3] (a
batch permuted to [B, 3, H, W] is channels_last already) or windows of a text (text_windows.py), and
labels int64 [N], on the CPU. Data that comes from known clients names the client of each sample.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from c2v_sim.data.dataset import Dataset, content_hash
from c2v_sim.data.sources import cifar10, domainnet, pacs, shakespeare, shapes
from c2v_sim.data.sources import made_up_speech as babble
from c2v_sim.data.text_windows import Windows
from c2v_sim.system.errors import DataError, Unreachable
from c2v_sim.system.files import replacing

__all__ = ["DATASETS", "DataError", "Dataset", "content_hash", "default_data_dir", "load_dataset"]

SHAPES_TRAIN, SHAPES_TEST, SHAPES_SEED = 50_000, 10_000, 0
# The content hash of the complete CIFAR-10, whichever form it was read from.
CIFAR10_SHA256 = "de5362ef39c0d4f8c4007302c009b1161627baef1fa02c673bf5743e75f53cc3"


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
    sample_fraction: float = 0.1,
    min_samples: int = 40,
    train_fraction: float = 0.8,
    seed: int = 0,
    progress: bool = True,
) -> Dataset:
    """Load a data set by name.

    data_dir: where data is looked for, downloaded to and cached (default: `default_data_dir()`).
    require_real_data: raise DataError instead of using a stand-in when a download fails.
    train_size, test_size: number of images; `shapes` renders any number (default 50,000 and
        10,000), `cifar10` takes the first so many in the official order (default all),
        `pacs` in the mixed order that its module describes.
    sample_fraction, min_samples, train_fraction, seed: of `shakespeare`: the share of all samples
        that is taken in whole roles, in an order drawn with the seed; the fewest of a role; the
        share of a role's samples that trains.
    seed: also chooses the classes of `domainnet`.
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
    own: dict[str, dict[str, Any]] = {
        "shakespeare": {
            "sample_fraction": sample_fraction,
            "min_samples": min_samples,
            "train_fraction": train_fraction,
            "seed": seed,
        },
        "domainnet": {"seed": seed},
    }
    options = own.get(name, {})
    return DATASETS[name](folder, require_real_data, train_size, test_size, progress, **options)


def _announce_standin(missing: str, remedy: str, instead: str, data: str, refuse: bool) -> None:
    """Say on screen that `instead` stands in for `data`, or refuse to; `remedy` gets the data."""
    if refuse:
        raise DataError(f"{missing}; {remedy}")
    print(
        f"STAND-IN DATA: {missing}, so this run uses {instead} instead and its results "
        f"say nothing about {data}; to get the real data, {remedy}.",
        file=sys.stderr,
    )


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
        tensors: dict[str, Any] = {}
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


def _read_cache(path: Path) -> tuple[dict[str, Any], str] | None:
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
        _announce_standin(missing, remedy, "rendered shapes", "CIFAR-10", require_real_data)
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


# ---- shakespeare ----------------------------------------------------------------------------


def _load_shakespeare(
    folder: Path,
    require_real_data: bool,
    train_size: int | None,
    test_size: int | None,
    progress: bool,
    **how: Any,  # sample_fraction, min_samples, train_fraction, seed
) -> Dataset:
    if train_size or test_size:
        raise DataError(
            "shakespeare: choose its size by sample_fraction, not train_size, test_size"
        )
    standin_for = None
    try:
        roles, source = shakespeare.find(folder) or shakespeare.download(folder, progress)
    except Unreachable as reason:
        missing = f"shakespeare is not in {folder} and could not be downloaded ({reason})"
        remedy = (
            f"place {shakespeare.TEXT} (Project Gutenberg #100, World Library edition, posted "
            f"2011) or {shakespeare.ARCHIVE} (from {shakespeare.URLS[0]}) in {folder}, or name "
            "the folder that has it with --data-dir"
        )
        _announce_standin(missing, remedy, "made-up speech", "Shakespeare", require_real_data)
        roles, source, standin_for = babble.speech(), "made up by c2v_sim", "shakespeare"
    parts = shakespeare.split(roles, **how)
    text = torch.from_numpy(parts.text)
    arrays: dict[str, Any] = {}
    for key in ("train", "test"):
        starts = torch.from_numpy(getattr(parts, f"x_{key}"))
        arrays[f"x_{key}"] = Windows(text, starts, shakespeare.WINDOW)
        arrays[f"y_{key}"] = text[starts + shakespeare.WINDOW].long()
    return Dataset(
        name="shakespeare-standin(babble)" if standin_for else "shakespeare",
        class_names=tuple(shakespeare.ALPHABET),
        mean=(),
        std=(),
        source=", ".join([source, *(f"{key} {value}" for key, value in how.items())]),
        sha256=content_hash(arrays),
        client_train=torch.from_numpy(parts.client_train),
        client_test=torch.from_numpy(parts.client_test),
        client_names=parts.names,
        standin_for=standin_for,
        **arrays,
    )


# ---- domainnet ------------------------------------------------------------------------------


def _load_domainnet(
    folder: Path,
    require_real_data: bool,
    train_size: int | None,
    test_size: int | None,
    progress: bool,
    seed: int = 0,
) -> Dataset:
    own = folder / "domainnet"
    if missing := domainnet.missing_files(own):
        absent = f"domainnet is not complete in {own}: no {', '.join(missing)}"
        remedy = (
            f"place the six archives (cleaned version) and the list files of {domainnet.PAGE} in "
            f"{own}, or name the folder that holds `domainnet` with --data-dir"
        )
        begun = own.is_dir() and any(own.iterdir())  # so it is meant
        _announce_standin(
            absent, remedy, "rendered shapes", "DomainNet", require_real_data or begun
        )
        return _load_shapes(folder, False, train_size, test_size, progress, "domainnet")
    if train_size or test_size:
        raise DataError("domainnet: train_size and test_size are for shapes and cifar10")
    images = domainnet.load(own, seed, progress)
    return Dataset(
        name="domainnet",
        class_names=images.class_names,
        domain_names=domainnet.DOMAINS,
        mean=domainnet.MEAN,
        std=domainnet.STD,
        source=images.source,
        sha256=content_hash(images.tensors),
        **images.tensors,
    )


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
        instead = "rendered shapes (six domains)"
        _announce_standin(missing, remedy, instead, "PACS", require_real_data)
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
    "shakespeare": _load_shakespeare,
    "domainnet": _load_domainnet,
    "pacs": _load_pacs,
}
OWN_CLIENTS = ("shakespeare",)  # data that comes from known clients
CHOSEN_BY_SEED = ("shakespeare", "domainnet")  # data of which a seed takes a part
