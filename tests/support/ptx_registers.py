"""What a block has while it runs, and the bits of its registers as other types."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from ptx_memory import GlobalMemory, SharedMemory

UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
POISON = {1: True, 16: 0x7FC1, 32: 0x7FC1DEAD, 64: 0x7FF8DEADDEADDEAD}  # NaN, for what is unset


@dataclass
class Block:
    number: int
    registers: dict[str, np.ndarray]  # an entry a thread
    shared: SharedMemory
    memory: GlobalMemory
    parameters: Sequence[int]  # the bits of each


def reinterpreted(value: np.ndarray, kind: type) -> np.ndarray:
    """The same bits as another type; of a wider register the low ones."""
    size = np.dtype(kind).itemsize
    if value.dtype.itemsize != size:
        value = value.view(UNSIGNED[value.dtype.itemsize]).astype(UNSIGNED[size])
    return value.view(kind)


def extended(value: np.ndarray, width: int) -> np.ndarray:
    """A result in a register of `width` bits: with its sign, if it has one."""
    if width == 1 or 8 * value.dtype.itemsize == width:
        return value
    signed = value.dtype.kind == "i"
    plain = value if signed else value.view(UNSIGNED[value.dtype.itemsize])
    return (
        plain.astype({16: np.int16, 32: np.int32, 64: np.int64}[width])
        if signed
        else (plain.astype(UNSIGNED[width // 8]))
    )
