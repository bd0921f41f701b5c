"""What a data set offers: how it is loaded, and what is known about it before that.

A new data set is a file beside this one with a `SOURCE`, and a line in data/load.py.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from c2v_sim.data.dataset import Dataset
from c2v_sim.system.errors import DataError


@dataclass(frozen=True)
class Request:
    """What `load_dataset` was asked for; its docstring has the meaning."""

    folder: Path
    require_real_data: bool = False
    train_size: int | None = None
    test_size: int | None = None
    sample_fraction: float = 0.1
    min_samples: int = 40
    train_fraction: float = 0.8
    seed: int = 0
    progress: bool = True


@dataclass(frozen=True)
class StandIn:
    """What is used, and loudly named, where the data cannot be had."""

    name: str  # for people
    load: Callable[[Request], Dataset]


@dataclass(frozen=True)
class Source:
    """A data set that is loaded by name."""

    title: str  # for people
    # Unreachable with the reason where the data cannot be had, DataError where it is damaged.
    load: Callable[[Request], Dataset]
    standin: StandIn | None = None
    remedy: str = ""  # how to get the real data, into `{folder}`
    own_clients: bool = False  # it says whose each sample is: partition natural
    chosen_by_seed: bool = False  # another seed loads other samples
    text: bool = False  # windows of a text instead of images
    model: str | None = None  # the client model that reads it, where the usual one cannot
    settings: tuple[str, ...] = ()  # of a run, without effect with any other data set


def first_samples(dataset: Dataset, request: Request) -> Dataset:
    """The first `train_size` and `test_size` samples of a data set; its source says so."""
    for split, size in (("train", request.train_size), ("test", request.test_size)):
        whole = len(dataset.y_train if split == "train" else dataset.y_test)
        if size is None or size == whole:
            continue
        if size > whole:
            raise DataError(f"{dataset.name}: {split}_size must be at most {whole}, got {size}")
        note = f"{dataset.source}, first {size} of {whole} {split} images"
        dataset = dataclasses.replace(dataset.take(split, torch.arange(size)), source=note)
    return dataset
