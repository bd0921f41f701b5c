"""A user's arrays → checked samples, split into training and test, and the data set of them.

Enters: x uint8 [N, H, W, C] or [N, D], float [N, …] or integers [N, T], y [N] integers, a client id
per sample. Errors name the argument of `Federation.from_arrays` that was wrong.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from c2v_sim.data.as_numpy import Array, as_numpy
from c2v_sim.data.client_ids import ClientIds, stable_order
from c2v_sim.data.dataset import Dataset, dataset_of
from c2v_sim.data.partition import MOST_CLASSES, make_partition
from c2v_sim.system.seeding import PARTITION, rng

CHANNELS = (1, 3, 4)  # that images have
AT_A_TIME = 2**22  # numbers that are looked at, so that no second array as large as x is made
# Up to so many clients the test samples of each have a draw of their own, beyond they share one:
# a million draws would take longer than all the rest.
OWN_DRAWS = 100_000
RENUMBER = "; number the classes from 0, or give map_labels=True"


@dataclass(frozen=True)
class Samples:
    """Samples, their classes and whose they are."""

    x: np.ndarray  # uint8 [N, H, W, C] or [N, D], float32 [N, …], int32 [N, T]
    y: np.ndarray  # int64 [N]
    owner: np.ndarray  # integers or strings [N]

    def take(self, ids: np.ndarray) -> Samples:
        return Samples(self.x[ids], self.y[ids], self.owner[ids])


def dataset(
    name: str,
    train: Samples,
    test: Samples,
    class_names: Sequence[str] | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> Dataset:
    """The data set of both parts; classes without names are called by their numbers."""
    if train.x.shape[1:] != test.x.shape[1:] or train.x.dtype != test.x.dtype:
        raise ValueError(
            f"from_arrays: x and x_test must agree in shape and dtype, got "
            f"{train.x.dtype} {train.x.shape} and {test.x.dtype} {test.x.shape}"
        )
    means, deviations = _normalisation(train.x, mean, std)
    given = {"x_train": train.x, "y_train": train.y, "x_test": test.x, "y_test": test.y}
    return dataset_of(
        {key: _tensor(array) for key, array in given.items()},
        name=name,
        class_names=_class_names(class_names, _classes_in(train.y, test.y)),
        mean=means,
        std=deviations,
        source="arrays",
    )


def checked(suffix: str, x: Array, y: Array, client_ids: Array) -> Samples:
    """Checked arrays in the types that the simulator uses; `suffix` is for names in errors."""
    x, y = as_numpy(f"x{suffix}", x), as_numpy(f"y{suffix}", y)
    owner = as_numpy(f"client_ids{suffix}", client_ids)
    if x.dtype.kind == "f" and x.ndim >= 2:
        x = x.astype(np.float32, copy=False)
        if not _all_finite(x):
            raise ValueError(f"from_arrays: x{suffix} contains NaN or infinite values")
    elif x.dtype.kind in "iu" and x.dtype != np.uint8 and x.ndim == 2:
        x = _sequences(suffix, x)
    elif x.dtype != np.uint8 or x.ndim not in (2, 4):
        grey = "; grey images are x[..., None]" if x.dtype == np.uint8 and x.ndim == 3 else ""
        raise ValueError(
            f"from_arrays: x{suffix} must be uint8 images [N, H, W, C], float features [N, …], "
            f"byte features [N, D] or integer sequences [N, T], got {x.dtype} {x.shape}{grey}"
        )
    if x.ndim == 4 and x.dtype == np.uint8 and x.shape[1] in CHANNELS and min(x.shape[2:]) > 4:
        raise ValueError(
            f"from_arrays: x{suffix} must be images [N, H, W, C], got {x.shape}, which looks like "
            '[N, C, H, W]; give layout="NCHW"'
        )
    for name, array, kinds in (("y", y, "iu"), ("client_ids", owner, "iuUS")):
        if array.shape != (len(x),) or array.dtype.kind not in kinds:
            raise ValueError(
                f"from_arrays: {name}{suffix} must be [{len(x)}], one "
                f"{'integer' if name == 'y' else 'integer or string'} for each row of x{suffix}, "
                f"got {array.dtype} {array.shape}" + (RENUMBER if name == "y" else "")
            )
    if not len(x):
        without = "; without any test samples: leave the test arrays out, with test_fraction=0"
        raise ValueError(
            f"from_arrays: x{suffix} is empty; at least one sample is needed"
            + (without if suffix else "")
        )
    if y.min(initial=0) < 0:
        raise ValueError(f"from_arrays: y{suffix} must be >= 0, got {y.min()}{RENUMBER}")
    # Tensors share memory with arrays that are contiguous.
    x, y = np.require(x, requirements="C"), np.require(y, np.int64, "C")
    return Samples(x, y, owner)


def _all_finite(x: np.ndarray) -> bool:
    rows = max(1, AT_A_TIME // max(1, x[:1].size))
    return all(np.isfinite(x[i : i + rows]).all() for i in range(0, len(x), rows))


def _tensor(array: np.ndarray) -> torch.Tensor:
    """The same memory. Nobody writes into a data set: a read-only map is used as it is."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def _sequences(suffix: str, x: np.ndarray) -> np.ndarray:  # int32 [N, T]
    """Symbol numbers; anything else that is whole numbers must say that it is features."""
    if x.size and not 0 <= x.min() <= x.max() < 2**31:
        raise ValueError(
            f"from_arrays: x{suffix} has whole numbers {x.min()}..{x.max()}; sequences are symbol "
            "numbers from 0, and features must be floats: x.astype('float32')"
        )
    return x.astype(np.int32)


def split(samples: Samples, test_fraction: float, seed: int) -> tuple[Samples, Samples]:
    """`test_fraction` of each client's samples for tests; at least one stays for training."""
    if not 0 <= test_fraction < 1:
        raise ValueError(f"from_arrays: test_fraction must be in [0, 1), got {test_fraction}")
    if test_fraction == 0:
        return samples, samples.take(np.zeros(0, dtype=np.int64))
    by_owner = make_partition(
        "natural", samples.y, samples.y[:0], natural_train=samples.owner
    ).train
    # The tiny term undoes binary rounding: 0.29 · 100 is 28.999…
    counts = (test_fraction * by_owner.sizes + 1e-9).astype(np.int64)
    counts = np.minimum(counts, by_owner.sizes - 1)
    is_test = np.zeros(len(samples.y), dtype=bool)
    is_test[_drawn(by_owner, counts, rng(seed, PARTITION))] = True
    if not is_test.any():
        raise ValueError(
            f"from_arrays: test_fraction {test_fraction} leaves no test sample in any of the "
            f"{len(by_owner)} clients; give a larger one, or x_test, y_test and client_ids_test"
        )
    return samples.take(np.flatnonzero(~is_test)), samples.take(np.flatnonzero(is_test))


def _drawn(
    held: ClientIds, counts: np.ndarray, generator: np.random.Generator
) -> np.ndarray:  # [sum of counts]
    """`counts[i]` of the samples of each client i, at random."""
    if len(held) <= OWN_DRAWS:
        chosen = zip(held, counts.tolist(), strict=True)
        return np.concatenate([generator.permutation(ids)[:count] for ids, count in chosen])
    mixed = generator.permutation(len(held.flat))
    mixed = held.flat[mixed[stable_order(held.owners[mixed])]]  # each client's, in another order
    place = np.arange(len(mixed)) - np.repeat(held.offsets[:-1], held.sizes)
    return mixed[place < np.repeat(counts, held.sizes)]


def _classes_in(*labels: np.ndarray) -> np.ndarray:
    """The classes that occur, ascending, without sorting all labels."""
    if max(y.max(initial=0) for y in labels) >= MOST_CLASSES:
        return np.unique(np.concatenate(labels))
    counts = [np.bincount(y, minlength=1) for y in labels]
    return np.unique(np.concatenate([np.flatnonzero(c) for c in counts]))


def _class_names(given: Sequence[str] | None, found: np.ndarray) -> tuple[str, ...]:
    """`found`: the classes that occur, ascending. Without names, all from 0 on must occur: a class
    that nobody has would be an output of the model that nothing trains."""
    largest = int(found[-1])
    if given is None:
        if largest >= len(found):
            missing = next(k for k, y in enumerate(found.tolist()) if k != y)
            raise ValueError(
                f"from_arrays: y has {len(found)} classes from {found[0]} to {largest}, but none "
                f"is {missing}{RENUMBER}; or name all of them, those without samples too, with "
                "class_names"
            )
        given = list(map(str, range(largest + 1)))
    if len(given) <= largest:
        raise ValueError(
            f"from_arrays: class_names has {len(given)} names, but y contains class {largest}"
        )
    return tuple(map(str, given))


def _normalisation(
    x: np.ndarray, mean: Sequence[float] | None, std: Sequence[float] | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std per channel on the scale 0..1; empty for features, which are used as given."""
    if (mean is None) != (std is None):
        raise ValueError("from_arrays: give both mean and std, or neither")
    if x.dtype != np.uint8 or x.ndim != 4:
        if mean is not None:
            raise ValueError(
                "from_arrays: mean and std apply to uint8 images; scale float features beforehand"
            )
        return (), ()
    if mean is None or std is None:
        return _channel_statistics(x)
    if len(mean) != x.shape[-1] or len(std) != x.shape[-1] or not min(std) > 0:
        raise ValueError(
            f"from_arrays: mean and std need {x.shape[-1]} values (one per channel), std positive, "
            f"got {tuple(mean)} and {tuple(std)}"
        )
    return tuple(map(float, mean)), tuple(map(float, std))


def _channel_statistics(x: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Exact moments from histograms, in slices: a float copy of all images would be eight-fold."""
    levels = np.arange(256) / 255
    mean, std = [], []
    for channel in range(x.shape[-1]):
        counts = np.zeros(256)
        for start in range(0, len(x), 128):
            some = x[start : start + 128, ..., channel]
            counts += np.bincount(some.ravel(), minlength=256)
        mean.append(float(counts @ levels / counts.sum()))
        variance = float(counts @ (levels - mean[-1]) ** 2 / counts.sum())
        std.append(variance**0.5 or 1.0)  # a constant channel stays finite
    return tuple(mean), tuple(std)
