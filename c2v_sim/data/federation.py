"""What the simulator trains on: a data set and who holds which of its samples.

`Federation.from_arrays` makes one from a user's own arrays: x [N, …], y [N] and a client id for
each sample, with or without test arrays of the same form; `Federation.from_image_folders` from a
folder of images for each client.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from c2v_sim.data.dataset import ARRAYS, Dataset, content_hash
from c2v_sim.data.partition import Partition, make_partition
from c2v_sim.data.sources import image_folders
from c2v_sim.data.text_windows import Windows
from c2v_sim.system.seeding import PARTITION, UPLOAD, rng

Array = Any  # numpy array, torch tensor or nested list


@dataclass(frozen=True, eq=False)
class Federation:
    """A data set together with its partition."""

    dataset: Dataset
    partition: Partition

    def __post_init__(self) -> None:
        for part, lists, samples in (
            ("training", self.partition.train, len(self.dataset.y_train)),
            ("test", self.partition.test, len(self.dataset.y_test)),
        ):
            largest = max((int(ids.max()) for ids in lists if len(ids)), default=-1)
            if largest >= samples:
                raise ValueError(
                    f"Federation: the partition names {part} sample {largest}, but "
                    f"{self.dataset.name} has {samples}; it was made for other data"
                )

    @cached_property
    def label_counts(self) -> torch.Tensor:  # int64 [M, K]
        """Training samples of each class that each client holds."""
        y, classes = self.dataset.y_train, self.dataset.classes
        own = (y[torch.from_numpy(ids)] for ids in self.partition.train)
        return torch.stack([torch.bincount(labels, minlength=classes) for labels in own])

    @property
    def domain_names(self) -> tuple[str, ...]:
        """The domains that clients follow, in the order of the accuracies by domain; else none."""
        known = self.dataset.domain_names
        found = sorted(set(self.partition.domains or ()))
        return tuple(known[d] if d < len(known) else str(d) for d in found)

    def limited(self, most: int, seed: int) -> Federation:
        """Of each client at most `most` training samples, drawn at random; 0: all of them.

        The samples are numbered anew, client after client, each client's in their old order.
        """
        if most == 0 or self.partition.sizes.max() <= most:
            return self
        kept = limited_ids(self.partition, most, seed)
        chosen = torch.from_numpy(np.concatenate(kept))
        train = np.split(np.arange(len(chosen)), np.cumsum([len(ids) for ids in kept])[:-1])
        old = self.dataset
        new: dict[str, Any] = {
            name: array[chosen]
            for name in ("y_train", "domain_train", "client_train")
            if (array := getattr(old, name)) is not None
        }
        x = old.x_train
        new["x_train"] = x.take(chosen) if isinstance(x, Windows) else x[chosen]
        content = {name: getattr(old, name) for name in ARRAYS} | new
        dataset = dataclasses.replace(old, sha256=content_hash(content), **new)
        return Federation(dataset, dataclasses.replace(self.partition, train=tuple(train)))

    @classmethod
    def from_arrays(
        cls,
        x: Array,
        y: Array,
        client_ids: Array,
        *,
        x_test: Array = None,
        y_test: Array = None,
        client_ids_test: Array = None,
        test_fraction: float = 0.2,
        class_names: Sequence[str] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        seed: int = 0,
        name: str = "user",
    ) -> Federation:
        """A federation of the clients named in `client_ids` (integers or strings, one a sample).

        x: uint8 images [N, H, W, C], normalised by `mean` and `std` (default: those of the
        training images), or float features [N, …], which reach the model as they are (the image
        models expect uint8). y: integer classes [N].
        Without test arrays, `test_fraction` of each client's samples (rounded down, at least one
        stays for training) become its test set.
        """
        samples = _samples("", x, y, client_ids)
        given = [array is not None for array in (x_test, y_test, client_ids_test)]
        if any(given) and not all(given):
            raise ValueError(
                "from_arrays: give x_test, y_test and client_ids_test, or none of them"
            )
        if all(given):
            train, test = samples, _samples("_test", x_test, y_test, client_ids_test)
            origin = "natural, test set given"
        else:
            train, test = _split(samples, test_fraction, seed)
            origin = f"natural, test set {test_fraction:g} of each client"
        if train.x.shape[1:] != test.x.shape[1:] or train.x.dtype != test.x.dtype:
            raise ValueError(
                f"from_arrays: x and x_test must agree in shape and dtype, got "
                f"{train.x.dtype} {train.x.shape} and {test.x.dtype} {test.x.shape}"
            )
        partition = make_partition(
            "natural", train.y, test.y, natural_train=train.owner, natural_test=test.owner
        )
        dataset = _dataset(name, train, test, class_names, mean, std)
        return cls(dataset, dataclasses.replace(partition, convention=origin))

    @classmethod
    def from_image_folders(
        cls,
        root: str | Path,
        *,
        size: tuple[int, int] | None = None,
        test_fraction: float = 0.2,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        seed: int = 0,
        name: str | None = None,
        progress: bool = True,
    ) -> Federation:
        """A federation of the folders in `root`, a client each: <client>/<class>/<image>.

        With <client>/train/<class>/<image> and <client>/test/<class>/<image> the test sets are
        given, otherwise `test_fraction` of each client's images become its test set.
        size: (H, W) that every image is resized to (bilinear); may be left out where all have the
        same. Classes are numbered in the order of their folders' names, over all clients.
        """
        found = image_folders.read(Path(root), size, progress)
        given = {"x_test": found.x_test, "y_test": found.y_test, "client_ids_test": found.of_test}
        return cls.from_arrays(
            found.x,
            found.y,
            found.of,
            **(given if found.x_test is not None else {}),
            test_fraction=test_fraction,
            class_names=found.class_names,
            mean=mean,
            std=std,
            seed=seed,
            name=name or Path(root).resolve().name,
        )


def limited_ids(partition: Partition, most: int, seed: int) -> list[np.ndarray]:
    """The training samples that `Federation.limited` keeps of each client, ascending."""
    return [
        np.sort(rng(seed, UPLOAD, i, 1).choice(ids, most, replace=False))
        if len(ids) > most
        else ids
        for i, ids in enumerate(partition.train)
    ]


@dataclass(frozen=True)
class _Samples:
    x: np.ndarray  # uint8 [N, H, W, C] or float32 [N, …]
    y: np.ndarray  # int64 [N]
    owner: np.ndarray  # integers or strings [N]

    def take(self, ids: np.ndarray) -> _Samples:
        return _Samples(self.x[ids], self.y[ids], self.owner[ids])


def _dataset(
    name: str,
    train: _Samples,
    test: _Samples,
    class_names: Sequence[str] | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> Dataset:
    x_train, y_train, x_test, y_test = map(torch.from_numpy, (train.x, train.y, test.x, test.y))
    mean, std = _normalisation(train.x, mean, std)
    return Dataset(
        name=name,
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        class_names=_class_names(class_names, int(max(train.y.max(), test.y.max()))),
        mean=mean,
        std=std,
        source="arrays",
        sha256=content_hash(
            {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}
        ),
    )


def _samples(suffix: str, x: Array, y: Array, client_ids: Array) -> _Samples:
    """Checked arrays in the types that the simulator uses; `suffix` is for names in errors."""
    x, y, owner = _numpy(x), _numpy(y), _numpy(client_ids)
    if x.dtype.kind == "f" and x.ndim >= 2:
        x = x.astype(np.float32, copy=False)
        if not np.isfinite(x).all():
            raise ValueError(f"from_arrays: x{suffix} contains NaN or infinite values")
    elif x.dtype != np.uint8 or x.ndim != 4:
        raise ValueError(
            f"from_arrays: x{suffix} must be uint8 images [N, H, W, C] or float features [N, …], "
            f"got {x.dtype} {x.shape}"
        )
    for name, array, kinds in (("y", y, "iu"), ("client_ids", owner, "iuUS")):
        if array.shape != (len(x),) or array.dtype.kind not in kinds:
            raise ValueError(
                f"from_arrays: {name}{suffix} must be [{len(x)}], one "
                f"{'integer' if name == 'y' else 'integer or string'} for each row of x{suffix}, "
                f"got {array.dtype} {array.shape}"
            )
    if not len(x):
        raise ValueError(f"from_arrays: x{suffix} is empty; at least one sample is needed")
    if y.min(initial=0) < 0:
        raise ValueError(f"from_arrays: y{suffix} must be >= 0, got {y.min()}")
    # Tensors share memory with arrays that are contiguous and writable only.
    x, y = np.require(x, requirements=["C", "W"]), np.require(y, np.int64, ["C", "W"])
    return _Samples(x, y, owner)


def _numpy(array: Array) -> np.ndarray:
    if isinstance(array, torch.Tensor):
        array = array.detach().cpu()
        array = array.float() if array.is_floating_point() else array  # numpy has no bfloat16
        return array.numpy()
    return np.asarray(array)


def _split(samples: _Samples, test_fraction: float, seed: int) -> tuple[_Samples, _Samples]:
    if not 0 < test_fraction < 1:
        raise ValueError(f"from_arrays: test_fraction must be in (0, 1), got {test_fraction}")
    generator = rng(seed, PARTITION)
    is_test = np.zeros(len(samples.y), dtype=bool)
    by_owner = make_partition(
        "natural", samples.y, samples.y[:0], natural_train=samples.owner
    ).train
    for ids in by_owner:
        # The tiny term undoes binary rounding: 0.29 · 100 is 28.999…
        count = min(int(test_fraction * len(ids) + 1e-9), len(ids) - 1)
        is_test[generator.permutation(ids)[:count]] = True
    if not is_test.any():
        raise ValueError(
            f"from_arrays: test_fraction {test_fraction} leaves no test sample in any of the "
            f"{len(by_owner)} clients; give a larger one, or x_test, y_test and client_ids_test"
        )
    return samples.take(np.flatnonzero(~is_test)), samples.take(np.flatnonzero(is_test))


def _class_names(given: Sequence[str] | None, largest: int) -> tuple[str, ...]:
    names = tuple(map(str, range(largest + 1) if given is None else given))
    if len(names) <= largest:
        raise ValueError(
            f"from_arrays: class_names has {len(names)} names, but y contains class {largest}"
        )
    return names


def _normalisation(
    x: np.ndarray, mean: Sequence[float] | None, std: Sequence[float] | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std per channel on the scale 0..1; empty for features, which are used as given."""
    if (mean is None) != (std is None):
        raise ValueError("from_arrays: give both mean and std, or neither")
    if x.dtype != np.uint8:
        if mean is not None:
            raise ValueError(
                "from_arrays: mean and std apply to uint8 images; scale float features beforehand"
            )
        return (), ()
    if mean is None or std is None:
        return _channel_statistics(x)
    if len(mean) != x.shape[-1] or len(std) != x.shape[-1] or not min(std) > 0:
        raise ValueError(
            f"from_arrays: mean and std need {x.shape[-1]} values (one a channel), std positive, "
            f"got {tuple(mean)} and {tuple(std)}"
        )
    return tuple(map(float, mean)), tuple(map(float, std))


def _channel_statistics(x: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Exact moments from histograms, in slices: a float copy of all images would be eight-fold."""
    levels = np.arange(256) / 255
    mean, std = [], []
    for channel in range(x.shape[-1]):
        counts = np.zeros(256)
        for start in range(0, len(x), 1024):
            counts += np.bincount(x[start : start + 1024, ..., channel].ravel(), minlength=256)
        mean.append(float(counts @ levels / counts.sum()))
        variance = float(counts @ (levels - mean[-1]) ** 2 / counts.sum())
        std.append(variance**0.5 or 1.0)  # a constant channel stays finite
    return tuple(mean), tuple(std)
