"""Memory of a GPU that notices what a GPU does not: who reads and writes what, and when.

Global memory is made of tensors, each far from every other: an access that is not to an element of
a tensor is an error, also in the gaps of a strided one. So is an address that two blocks of a grid
use when one of them writes: blocks run in any order.

Shared memory remembers since the last barrier which thread wrote and read each word. A word that
one thread wrote and another touches without a barrier between them is an error, as is a word that
was never written. `cp.async` arrives when it is waited for: until then its target is untouchable.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from ptx_parse import PtxError
from torch import Tensor

NOBODY, SEVERAL = -1, -2
_REGION = 40  # bits of an address inside of one tensor


class OutOfBounds(PtxError):
    pass


class Race(PtxError):
    pass


@dataclass
class Region:
    """One tensor: the bytes of its storage, and which of them are its elements."""

    data: np.ndarray
    inside: np.ndarray
    writer: np.ndarray  # the block that wrote the byte
    reader: np.ndarray
    base: int  # address of the storage's first byte
    shape: tuple[int, ...]


class GlobalMemory:
    def __init__(self) -> None:
        self._regions: list[Region] = []

    def add(self, tensor: Tensor) -> int:
        """The address of a tensor's first element, aligned as the tensor is."""
        storage = tensor.untyped_storage()
        data = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
        elements = np.zeros(len(data) // tensor.itemsize, bool)
        first = elements[tensor.storage_offset() :]
        as_strided(first, tensor.shape, tensor.stride())[...] = True  # strides: a byte an element
        inside = np.zeros(len(data), bool)
        inside[: len(elements) * tensor.itemsize] = elements.repeat(tensor.itemsize)
        nobody = np.full(len(data), NOBODY, np.int32)
        base = ((len(self._regions) + 1) << _REGION) + (1 << (_REGION - 1))
        base += storage.data_ptr() % 4096
        shape = tuple(tensor.shape)
        self._regions.append(Region(data, inside, nobody, nobody.copy(), base, shape))
        return base + tensor.storage_offset() * tensor.itemsize

    def load(self, addresses: np.ndarray, size: int, block: int) -> np.ndarray:  # -> [n, size]
        result = np.empty((len(addresses), size), np.uint8)
        for region, chosen, at in self._find(addresses, size, "read"):
            if ((region.writer[at] != NOBODY) & (region.writer[at] != block)).any():
                raise Race("global memory is read that another block of the grid wrote")
            known = region.reader[at]
            region.reader[at] = np.where((known == NOBODY) | (known == block), block, SEVERAL)
            result[chosen] = region.data[at]
        return result

    def store(self, addresses: np.ndarray, data: np.ndarray, block: int) -> None:  # [n], [n, size]
        for region, chosen, at in self._find(addresses, data.shape[1], "write"):
            for users in (region.writer[at], region.reader[at]):
                if ((users != NOBODY) & (users != block)).any():
                    raise Race("global memory is written that another block of the grid uses")
            region.writer[at] = block
            region.data[at] = data[chosen]
            if (region.data[at] != data[chosen]).any():
                raise Race("two threads write different values to one global address")

    def _find(self, addresses: np.ndarray, size: int, what: str):
        """(region, which of the addresses, their bytes [n, size]) after the checks."""
        which = (addresses >> _REGION) - 1
        for number in np.unique(which):
            if not 0 <= number < len(self._regions):
                raise OutOfBounds(f"global {what} at {addresses[which == number][0]:#x}: no tensor")
            region, chosen = self._regions[number], which == number
            at = (addresses[chosen] - region.base)[:, None] + np.arange(size)
            ok = (at >= 0) & (at < len(region.data))
            ok[ok] = region.inside[at[ok]]
            if not ok.all():
                bad = at[~ok][0]
                raise OutOfBounds(f"global {what} outside of a {region.shape} tensor, byte {bad}")
            yield region, chosen, at


@dataclass
class Copy:
    """A cp.async under way."""

    words: np.ndarray  # [n, words]
    threads: np.ndarray
    data: np.ndarray


class SharedMemory:
    """Words of `granule` bytes, the smallest piece that the kernel accesses."""

    def __init__(self, size: int, granule: int) -> None:
        words = -(-size // granule)
        self.granule = granule
        self.data = np.zeros(words, {1: np.uint8, 2: np.uint16, 4: np.uint32}[granule])
        self.written, self.in_flight = np.zeros(words, bool), np.zeros(words, bool)
        self.writer, self.reader = (np.full(words, NOBODY, np.int32) for _ in range(2))
        self.open: list[Copy] = []  # copies that are in no group yet
        self.groups: deque[list[Copy]] = deque()

    def barrier(self) -> None:
        self.writer.fill(NOBODY)
        self.reader.fill(NOBODY)

    def load(self, addresses: np.ndarray, size: int, threads: np.ndarray) -> np.ndarray:
        words = self._words(addresses, size)
        if not self.written[words].all():
            raise PtxError("shared memory is read that was never written")
        known, who = self.reader[words], threads[:, None]
        self._others(self.writer[words], who, "read", "wrote")
        self.reader[words] = np.where((known == NOBODY) | (known == who), who, SEVERAL)
        # Threads that read one word in one instruction: all of them are readers.
        if (self.reader[words] != who).any():
            self.reader[words[self.reader[words] != who]] = SEVERAL
        return np.ascontiguousarray(self.data[words]).view(np.uint8)

    def store(self, addresses: np.ndarray, data: np.ndarray, threads: np.ndarray) -> None:
        words = self._words(addresses, data.shape[1])
        self._check_write(words, threads)
        self._write(words, np.ascontiguousarray(data).view(self.data.dtype), threads)

    def copy_later(self, addresses: np.ndarray, data: np.ndarray, threads: np.ndarray) -> None:
        words = self._words(addresses, data.shape[1])
        self._check_write(words, threads)
        self.writer[words] = threads[:, None]
        self.in_flight[words] = True
        self.open.append(Copy(words, threads, data.view(self.data.dtype)))

    def commit(self) -> None:
        self.groups.append(self.open)
        self.open = []

    def wait(self, left: int) -> None:
        """All groups but the last `left` arrive; only the thread that asked sees its own."""
        while len(self.groups) > left:
            for copy in self.groups.popleft():
                self.in_flight[copy.words] = False
                self._write(copy.words, copy.data, copy.threads)

    def _words(self, addresses: np.ndarray, size: int) -> np.ndarray:  # [n, words]
        words = addresses[:, None] // self.granule + np.arange(size // self.granule)
        if (words < 0).any() or (words >= len(self.data)).any():
            raise OutOfBounds(f"shared memory of {self.data.nbytes} bytes at {addresses.max()}")
        if self.in_flight[words].any():
            raise Race("shared memory is touched while a cp.async to it was not waited for")
        return words

    def _check_write(self, words: np.ndarray, threads: np.ndarray) -> None:
        self._others(self.writer[words], threads[:, None], "written", "wrote")
        self._others(self.reader[words], threads[:, None], "written", "read")

    def _write(self, words: np.ndarray, data: np.ndarray, threads: np.ndarray) -> None:
        self.data[words] = data
        if (self.data[words] != data).any():
            raise Race("two threads write different values to one shared address")
        self.writer[words], self.written[words] = threads[:, None], True

    @staticmethod
    def _others(owners: np.ndarray, threads: np.ndarray, now: str, before: str) -> None:
        other = (owners != NOBODY) & (owners != threads)
        if other.any():
            raise Race(f"shared memory is {now} that another thread {before} since the barrier")
