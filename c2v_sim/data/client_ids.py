"""Sample ids of all clients in two flat arrays; `ids[i]` are those of client i, a slice.

A million small arrays would take seconds to make and several times the memory of their numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import overload

import numpy as np


class ClientIds(Sequence[np.ndarray]):
    """M × int64 [N_i]: client i holds flat[offsets[i] : offsets[i + 1]]."""

    def __init__(self, flat: np.ndarray, sizes: np.ndarray) -> None:  # [N], [M]
        self.flat = flat.astype(np.int64, copy=False)
        self.offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
        np.cumsum(sizes, out=self.offsets[1:])
        if self.offsets[-1] != len(flat) or np.min(sizes, initial=0) < 0:
            raise ValueError(f"{len(flat)} ids for sizes that sum to {self.offsets[-1]}")

    @classmethod
    def of(cls, lists: Iterable[np.ndarray]) -> ClientIds:
        """A copy of one array of ids per client."""
        arrays = [np.asarray(ids, dtype=np.int64) for ids in lists]
        for ids in arrays:
            if ids.ndim != 1:
                raise ValueError(f"Partition: ids of a client must be [N_i], got {ids.shape}")
        sizes = np.fromiter(map(len, arrays), np.int64, len(arrays))
        return cls(np.concatenate(arrays) if arrays else np.empty(0, np.int64), sizes)

    @overload
    def __getitem__(self, client: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, client: slice) -> Sequence[np.ndarray]: ...
    def __getitem__(self, client: int | slice) -> np.ndarray | Sequence[np.ndarray]:
        chosen = range(len(self))[client]
        if isinstance(chosen, range):
            return [self[i] for i in chosen]
        return self.flat[self.offsets[chosen] : self.offsets[chosen + 1]]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[np.ndarray]:
        for begin, end in itertools.pairwise(self.offsets):
            yield self.flat[begin:end]

    @cached_property
    def sizes(self) -> np.ndarray:  # int64 [M]
        return np.diff(self.offsets)

    @property
    def owners(self) -> np.ndarray:  # int64 [N]
        """The client of each number of `flat`."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def counts(self, classes_of: np.ndarray, classes: int) -> np.ndarray:  # [N'] -> int64 [M, K]
        """How many samples of each class every client holds."""
        cells = self.owners * classes + classes_of[self.flat]
        return np.bincount(cells, minlength=len(self) * classes).reshape(len(self), classes)

    @cached_property
    def each_once(self) -> bool:
        """Whether all ids are >= 0 and no id comes twice."""
        ids = self.flat
        if ids.min(initial=0) < 0:
            return False
        span = int(ids.max(initial=-1)) + 1
        if span > 8 * len(ids):  # a mark for every number would be larger than the ids themselves
            return len(np.unique(ids)) == len(ids)
        marks = np.zeros(span, dtype=bool)
        marks[ids] = True
        return int(np.count_nonzero(marks)) == len(ids)


def evenly(flat: np.ndarray, clients: int) -> ClientIds:
    """Cut into `clients` pieces whose sizes differ by at most one, as numpy.array_split does."""
    sizes = np.full(clients, len(flat) // clients)
    sizes[: len(flat) % clients] += 1
    return ClientIds(flat, sizes)


def joined(parts: Sequence[ClientIds]) -> ClientIds:
    """The clients of one after those of the other."""
    flat = np.concatenate([part.flat for part in parts])
    return ClientIds(flat, np.concatenate([part.sizes for part in parts]))


def grouped(owner: np.ndarray, clients: int) -> ClientIds:
    """Ascending positions in `owner` [N] of each client 0..M-1."""
    sizes = np.bincount(owner, minlength=clients)
    return ClientIds(stable_order(owner), sizes)


def stable_order(keys: np.ndarray) -> np.ndarray:  # [N] -> [N]
    """numpy.argsort(keys, kind="stable") of integers >= 0, several times as fast."""
    if (keys[1:] >= keys[:-1]).all():
        return np.arange(len(keys))
    # Sixteen bits at a time: those NumPy sorts by counting.
    order = np.argsort(keys.astype(np.uint16), kind="stable")
    for shift in range(16, int(keys.max()).bit_length(), 16):
        digits = (keys >> shift).astype(np.uint16)[order]
        order = order[np.argsort(digits, kind="stable")]
    return order


def numbered(names: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Different names, ascending, and the place [N] of each name among them.

    As numpy.unique(names, return_inverse=True), without sorting where names are near numbers.
    """
    if names.dtype.kind in "iu" and len(names):
        low, high = int(names.min()), int(names.max())
        if high - low < 8 * len(names) and low > -(2**62) and high < 2**62:
            from_low = names.astype(np.int64, copy=False) - low
            found = np.zeros(high - low + 1, dtype=bool)
            found[from_low] = True
            return np.flatnonzero(found) + low, (np.cumsum(found) - 1)[from_low]
    return np.unique(names, return_inverse=True)
