"""PTX instructions -> Python functions that carry them out for all threads of a block at once.

A register is an array with an entry a thread. A branch must be taken by all threads or by none,
which holds for what Triton writes; another one is refused, as is every instruction that is not
known here.
"""

from collections.abc import Callable

import numpy as np
from ptx_arithmetic import operation, type_of
from ptx_parse import Address, Instruction, Operand, Program, PtxError
from ptx_registers import POISON, UNSIGNED, Block, extended, reinterpreted

WARP = 32


Step = Callable[[Block], int | None]  # the number of the next instruction, if it is another


class Translation:
    """`steps` are the instructions of a program as functions of a block."""

    def __init__(self, program: Program, threads: int) -> None:
        self.program, self.threads = program, threads
        self.everyone = np.arange(threads)
        self.steps = [self._step(i) for i in program.instructions]

    def _step(self, line: Instruction) -> Step:
        name, space = line.opcode[0], line.opcode[1] if len(line.opcode) > 1 else ""
        if name == "bra":
            return self._branch(line, self.program.labels[line.operands[0]])
        if name == "ret":
            return self._branch(line, len(self.program.instructions))
        if name in ("bar", "cp") and "async" not in line.opcode and line.guard:
            raise PtxError(f"a barrier with a predicate: {line.text}")
        if line.opcode[:2] == ("bar", "sync") and line.operands[0] == "0":
            return lambda block: block.shared.barrier()
        if name == "cp" and space == "async":
            return self._async_copy(line)
        if name == "ld" and space == "param":
            return self._parameter(line)
        if name in ("ld", "st") and space in ("global", "shared"):
            return self._load(line) if name == "ld" else self._store(line)
        if name in ("ldmatrix", "stmatrix"):
            return self._matrix(line)
        if name == "shfl":
            return self._shuffle(line)
        if name == "mov":
            return self._move(line)
        kinds, function = operation(line.opcode)
        sources = [
            self._read(text, kinds[min(i, len(kinds) - 1)])
            for i, text in enumerate(line.operands[1:])
        ]
        put = self._write(line.operands[0], line)
        return lambda block: put(block, function(*(read(block) for read in sources)))

    # Registers

    def _read(self, text: Operand, kind: type) -> Callable[[Block], np.ndarray]:
        """How an operand is fetched as `kind`: a register, a special one, a number."""
        assert isinstance(text, str)
        if not text.startswith("%"):
            constant = self._constant(text, kind)
            return lambda block: constant

        def read(block: Block) -> np.ndarray:
            value = block.registers.get(text)
            if value is None:
                raise PtxError(f"{text} is read before it is written")
            return value if value.dtype == kind else reinterpreted(value, kind)

        return read

    def _constant(self, text: str, kind: type) -> np.ndarray:
        if text == "global_smem":
            bits = 0  # where shared memory begins
        elif text.startswith(("0f", "0d")):
            bits = int(text[2:], 16)
        else:
            bits = int(text.removesuffix("U"), 0)
        if kind is np.bool_:
            return np.full(self.threads, bits != 0)
        size = np.dtype(kind).itemsize
        unsigned = UNSIGNED[size]
        return np.full(self.threads, bits & (1 << (8 * size)) - 1, unsigned).view(kind)

    def _write(self, register: Operand, line: Instruction) -> Callable[[Block, np.ndarray], None]:
        """How a result is stored: extended to the register's width, where the guard allows."""
        assert isinstance(register, str)
        if register == "_":
            return lambda block, value: None
        width, guard = self.program.width(register), self._guard(line)

        def write(block: Block, value: np.ndarray) -> None:
            value = extended(value, width)
            if guard is not None:
                old = block.registers.get(register)
                if old is None:
                    old = np.full(self.threads, POISON[width], value.dtype if width == 1 else None)
                value = np.where(guard(block), value, reinterpreted(old, value.dtype.type))
            block.registers[register] = value

        return write

    def _guard(self, line: Instruction) -> Callable[[Block], np.ndarray] | None:
        if line.guard is None:
            return None
        read = self._read(line.guard, np.bool_)
        return (lambda block: ~read(block)) if line.negated else read

    def _active(self, line: Instruction) -> Callable[[Block], np.ndarray]:
        """The numbers of the threads that take part."""
        guard = self._guard(line)
        if guard is None:
            return lambda block: self.everyone
        return lambda block: np.flatnonzero(guard(block))

    def _branch(self, line: Instruction, target: int) -> Step:
        guard = self._guard(line)
        if guard is None:
            return lambda block: target

        def branch(block: Block) -> int | None:
            taken = guard(block)
            if taken.all():
                return target
            if taken.any():
                raise PtxError("a branch that only some threads of the block take")
            return None

        return branch

    # Memory

    def _address(self, operand: Operand) -> Callable[[Block], np.ndarray]:
        assert isinstance(operand, Address)
        base, offset = operand.base, operand.offset
        wide = base.startswith("%") and self.program.width(base) == 64
        read = self._read(base, np.uint64 if wide else np.uint32)
        return lambda block: read(block).astype(np.int64) + offset

    def _parameter(self, line: Instruction) -> Step:
        source, kind = line.operands[1], type_of(line.opcode[-1])
        assert isinstance(source, Address)
        number, put = int(source.base.rpartition("_")[2]), self._write(line.operands[0], line)
        return lambda block: put(block, self._constant(str(block.parameters[number]), kind))

    def _vector(self, line: Instruction, operand: Operand) -> tuple[tuple[str, ...], type, int]:
        """The registers of a load or store, their type, and the bytes of all of them."""
        known = {"ld", "st", "global", "shared", "v2", "v4", line.opcode[-1], "L1", "evict_last"}
        if set(line.opcode) - known:
            raise PtxError(f"unknown instruction {'.'.join(line.opcode)}")
        registers = operand if isinstance(operand, tuple) else (operand,)
        kind = type_of(line.opcode[-1])
        return registers, kind, len(registers) * np.dtype(kind).itemsize

    def _load(self, line: Instruction) -> Step:
        registers, kind, size = self._vector(line, line.operands[0])
        address, active = self._address(line.operands[1]), self._active(line)
        puts = [self._write(r, line) for r in registers]
        shared = line.opcode[1] == "shared"

        def load(block: Block) -> None:
            threads = active(block)
            at = _aligned(address(block)[threads], size)
            if shared:
                data = block.shared.load(at, size, threads)
            else:
                data = block.memory.load(at, size, block.number)
            values = np.zeros((self.threads, len(registers)), kind)
            values[threads] = data.view(kind)
            for i, put in enumerate(puts):
                put(block, np.ascontiguousarray(values[:, i]))

        return load

    def _store(self, line: Instruction) -> Step:
        registers, kind, size = self._vector(line, line.operands[1])
        address, active = self._address(line.operands[0]), self._active(line)
        reads = [self._read(r, kind) for r in registers]
        shared = line.opcode[1] == "shared"

        def store(block: Block) -> None:
            threads = active(block)
            at = _aligned(address(block)[threads], size)
            data = np.stack([read(block)[threads] for read in reads], 1).view(np.uint8)
            if shared:
                block.shared.store(at, data, threads)
            else:
                block.memory.store(at, data, block.number)

        return store

    def _async_copy(self, line: Instruction) -> Step:
        what = line.opcode[2]
        if what == "commit_group":
            return lambda block: block.shared.commit()
        if what == "wait_group":
            left = int(str(line.operands[0]))
            return lambda block: block.shared.wait(left)
        if what not in ("ca", "cg"):
            raise PtxError(f"unknown instruction {'.'.join(line.opcode)}")
        to, source = self._address(line.operands[0]), self._address(line.operands[1])
        size, active = int(str(line.operands[2]), 0), self._active(line)
        read_size = self._read((*line.operands, str(size))[3], np.uint32)  # the rest is zero

        def copy(block: Block) -> None:
            threads = active(block)
            data, sizes = np.zeros((len(threads), size), np.uint8), read_size(block)[threads]
            for part in np.unique(sizes[sizes > 0]):
                some = sizes == part
                at = _aligned(source(block)[threads[some]], size)
                data[some, :part] = block.memory.load(at, int(part), block.number)
            block.shared.copy_later(_aligned(to(block)[threads], size), data, threads)

        return copy

    # Between the threads of a warp

    def _shuffle(self, line: Instruction) -> Step:
        mode, clamp = line.opcode[2], line.operands[3]
        if mode not in ("bfly", "idx") or clamp != "31" or line.operands[4] != "-1" or line.guard:
            raise PtxError(f"unknown form of shfl: {line.text}")
        put = self._write(str(line.operands[0]).partition("|")[0], line)
        value, other = (
            self._read(line.operands[1], np.uint32),
            self._read(line.operands[2], np.uint32),
        )
        lane = self.everyone % WARP

        def shuffle(block: Block) -> None:
            chosen = other(block).astype(np.int64)
            source = lane ^ chosen if mode == "bfly" else chosen % WARP
            put(block, value(block)[self.everyone - lane + source])

        return shuffle

    def _matrix(self, line: Instruction) -> Step:
        """ldmatrix and stmatrix: 8×8 matrices of 16 bits, the addresses of whose rows come from
        eight threads each; every thread has two neighbours of one row (`trans`: of one column)."""
        loads, transposed = line.opcode[0] == "ldmatrix", "trans" in line.opcode
        registers, place = line.operands if loads else reversed(line.operands)
        address, lane = self._address(place), self.everyone % WARP
        if not isinstance(registers, tuple) or "m8n8" not in line.opcode or line.guard:
            raise PtxError(f"unknown form of {line.text}")
        across, down = lane % 4, lane // 4
        puts = [self._write(r, line) for r in registers] if loads else []
        reads = [] if loads else [self._read(r, np.uint32) for r in registers]

        def pieces(at: np.ndarray, i: int) -> list[np.ndarray]:
            """Where a thread's bits of matrix i are: one word, or two halves."""
            first = self.everyone - lane + 8 * i  # the thread with the address of row 0
            if transposed:
                return [at[first + 2 * across + k] + 2 * down for k in (0, 1)]
            return [at[first + down] + 4 * across]

        def move(block: Block) -> None:
            at = _aligned(address(block), 16)
            size = 2 if transposed else 4
            for i, put in enumerate(puts):
                parts = [block.shared.load(p, size, self.everyone) for p in pieces(at, i)]
                put(block, np.concatenate(parts, 1).view(np.uint32)[:, 0].copy())
            for i, read in enumerate(reads):
                data = np.ascontiguousarray(read(block)).view(np.uint8).reshape(self.threads, 4)
                for k, place in enumerate(pieces(at, i)):
                    block.shared.store(place, data[:, size * k : size * (k + 1)], self.everyone)

        return move

    def _move(self, line: Instruction) -> Step:
        to, source = line.operands
        kind = type_of(line.opcode[1])
        if isinstance(to, tuple):  # one register into its parts
            part = UNSIGNED[np.dtype(kind).itemsize // len(to)]
            read, puts = self._read(source, kind), [self._write(r, line) for r in to]

            def split(block: Block) -> None:
                parts = np.ascontiguousarray(read(block)).view(part).reshape(self.threads, -1)
                for i, put in enumerate(puts):
                    put(block, np.ascontiguousarray(parts[:, i]))

            return split
        put = self._write(to, line)
        if isinstance(source, tuple):
            part = UNSIGNED[np.dtype(kind).itemsize // len(source)]
            reads = [self._read(r, part) for r in source]
            return lambda block: put(
                block, np.stack([read(block) for read in reads], 1).view(kind)[:, 0].copy()
            )
        read = self._read(source, kind)
        return lambda block: put(block, read(block))


def _aligned(addresses: np.ndarray, size: int) -> np.ndarray:
    if (addresses % size).any():
        raise PtxError(f"an access of {size} bytes at an address that they do not divide")
    return addresses
