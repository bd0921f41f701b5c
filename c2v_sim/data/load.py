"""Stage 1: a data set's name -> images and labels as tensors, with where they came from.

Enters: a name from DATASETS and a folder. Leaves: a `Dataset` with images uint8 [N, H, W, C] (a
batch permuted to [B, C, H, W] is channels_last already) or windows of a text (text_windows.py), and
labels int64 [N], on the CPU. Data that comes from known clients names the client of each sample.
"""

import os
import sys
from pathlib import Path

import platformdirs

from c2v_sim.data.dataset import Dataset
from c2v_sim.data.sources import cifar10, domainnet, fashion_mnist, pacs, shakespeare, shapes
from c2v_sim.data.sources.source import Request, Source
from c2v_sim.system.errors import DataError, Unreachable, remedy

DATASETS: dict[str, Source] = {
    "shapes": shapes.SOURCE,
    "cifar10": cifar10.SOURCE,
    "fashion-mnist": fashion_mnist.SOURCE,
    "shakespeare": shakespeare.SOURCE,
    "domainnet": domainnet.SOURCE,
    "pacs": pacs.SOURCE,
}


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
    _check_folder(name, folder, named=bool(data_dir))
    request = Request(
        folder=folder,
        require_real_data=require_real_data,
        train_size=train_size,
        test_size=test_size,
        sample_fraction=sample_fraction,
        min_samples=min_samples,
        train_fraction=train_fraction,
        seed=seed,
        progress=progress,
    )
    try:
        return DATASETS[name].load(request)
    except Unreachable as missing:
        return _standin(DATASETS[name], request, missing)


def _check_folder(name: str, folder: Path, named: bool) -> None:
    """Refuse a data folder that cannot be entered, and say so where one that was `named` is new.

    For data that is rendered the folder is only a cache, which never ends a run.
    """
    if os.path.isfile(folder):
        raise DataError(f"{name}: the data folder {folder} is a file; give a folder (--data-dir)")
    only_cache, problem = not DATASETS[name].remedy, ""
    try:
        os.stat(folder / "_")  # asks to be let in
    except (FileNotFoundError, NotADirectoryError):
        if named and not folder.is_dir():
            if not folder.absolute().parent.is_dir():
                problem = "does not exist, nor the folder above it; correct it, or make it first"
            if only_cache or not problem:
                new = "did not exist; it is made once something is to be kept there"
                print(f"the data folder {folder} {new}", file=sys.stderr)
    except OSError as error:
        help = remedy(error, otherwise="choose another with --data-dir")
        problem = f"cannot be used: {error.strerror}; {help}"
    if problem and not only_cache:
        raise DataError(f"{name}: the data folder {folder} {problem}")


def _standin(source: Source, request: Request, missing: Unreachable) -> Dataset:
    """What stands in for the data, said on screen; or a refusal that says how to get the data."""
    remedy = source.remedy.format(folder=request.folder)
    if request.require_real_data or source.standin is None:
        raise DataError(f"{missing}; {remedy}") from missing
    print(
        f"STAND-IN DATA: {missing}, so this run uses {source.standin.name} instead and its results "
        f"say nothing about {source.title}; to get the real data, {remedy}.",
        file=sys.stderr,
    )
    return source.standin.load(request)
