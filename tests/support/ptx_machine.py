"""Runs a kernel's PTX on the CPU, block after block.

Findings are exceptions (PtxError, OutOfBounds, Race) that name the instruction and its line in the
kernel's Python source.
"""

from collections.abc import Sequence
from functools import cache
from itertools import product

import numpy as np
from ptx_memory import GlobalMemory, SharedMemory
from ptx_parse import Program, PtxError
from ptx_registers import Block
from ptx_translate import WARP, Step, Translation

MOST_INSTRUCTIONS = 3_000_000  # of one block; a loop that does not end is an error


def run_grid(
    program: Program,
    grid: tuple[int, int, int],
    threads: int,
    shared_bytes: int,
    memory: GlobalMemory,
    parameters: Sequence[int],
) -> int:
    """Run all blocks; how many instructions they took. `parameters` are the bits of each."""
    steps = _translated(program, threads)
    granule = _granule(program)
    thread = np.arange(threads, dtype=np.uint32)
    zero = np.zeros(threads, np.uint32)
    count = 0
    for number, (z, y, x) in enumerate(product(*(range(n) for n in reversed(grid)))):
        registers = {"%tid.x": thread, "%tid.y": zero, "%tid.z": zero, "%laneid": thread % WARP}
        for axis, at, size in zip("xyz", (x, y, z), grid, strict=True):
            registers[f"%ctaid.{axis}"] = np.full(threads, at, np.uint32)
            registers[f"%nctaid.{axis}"] = np.full(threads, size, np.uint32)
        block = Block(number, registers, SharedMemory(shared_bytes, granule), memory, parameters)
        with np.errstate(all="ignore"):
            count += _run_block(block, program, steps)
    return count


@cache
def _translated(program: Program, threads: int) -> list[Step]:
    return Translation(program, threads).steps


def _run_block(block: Block, program: Program, steps: list[Step]) -> int:
    at, count = 0, 0
    while at < len(steps):
        here, at, count = at, at + 1, count + 1
        try:
            other = steps[here](block)
        except PtxError as error:
            line = program.instructions[here]
            text = f"{error}: `{line.text}` ({line.where}, block {block.number})"
            raise type(error)(text) from None
        if other is not None:
            at = other
        if count > MOST_INSTRUCTIONS:
            raise PtxError(f"block {block.number} does not end")
    if block.shared.open or block.shared.groups:
        raise PtxError(f"block {block.number} ends with a cp.async that was not waited for")
    return count


def _granule(program: Program) -> int:
    """Bytes of the smallest access to shared memory."""
    own = (i.opcode for i in program.instructions if i.opcode[0] in ("ld", "st"))
    sizes = [int(o[-1][1:]) // 8 for o in own if o[1] == "shared"]
    halves = any({"stmatrix", "ldmatrix"} & set(i.opcode) for i in program.instructions)
    return min([2 if halves else 4, *sizes])
