"""What one PTX instruction computes from its operands: NumPy arrays with an entry a thread.

`operation(opcode)` gives the types of the operands, the type of the result and the function; the
machine fetches and stores. Products and sums of float32 in `fma` are formed in float64, those of
float64 in NumPy's longdouble, and rounded once more: at most a hair from the single rounding.
An instruction that is not here is refused by name.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
from ptx_approximate import RELATIVE, approximate, flushed
from ptx_parse import PtxError

Function = Callable[..., np.ndarray]
BF16 = np.dtype([("bits", np.uint16)])  # NumPy has no bfloat16; only conversions use it
_KINDS = {"f": {16: np.float16, 32: np.float32, 64: np.float64},
          "s": {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64},
          "u": {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}}  # fmt: skip
_KINDS["b"] = _KINDS["u"]
_WIDER = {np.float32: np.float64, np.float64: np.longdouble}
_COMPARE = {"lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
            "eq": np.equal, "ne": np.not_equal, "lo": np.less, "ls": np.less_equal,
            "hi": np.greater, "hs": np.greater_equal}  # fmt: skip
_PLAIN = {"add": np.add, "sub": np.subtract, "and": np.bitwise_and, "or": np.bitwise_or,
          "xor": np.bitwise_xor, "not": np.invert, "neg": np.negative, "abs": np.abs}  # fmt: skip


def type_of(name: str) -> type:
    """f32 -> np.float32, b64 -> np.uint64, pred -> bool."""
    if name == "pred":
        return np.bool_
    try:
        return _KINDS[name[0]][int(name[1:])]
    except (KeyError, ValueError):
        raise PtxError(f"unknown type {name}") from None


@cache
def operation(opcode: tuple[str, ...]) -> tuple[tuple[type, ...], Function]:
    """Types of the operands (the last one repeats), and the function; its result has its type."""
    name, modes, last = opcode[0], set(opcode[1:-1]), opcode[-1]
    if name == "cvt":
        return _conversion(opcode)
    kind = type_of(last)
    if name == "setp":
        return (kind,), _comparison(opcode[1], kind, opcode)
    if name == "selp":
        return (kind, kind, np.bool_), lambda a, b, choice: np.where(choice, a, b)
    if name in ("shl", "shr"):
        return (kind, np.uint32), _shift(name, kind)
    if opcode[:2] in RELATIVE:
        return (kind,), lambda *operands: approximate(opcode, *operands)
    if name in ("mul", "mad"):
        return _product(name, opcode[1], kind)
    if name == "fma":
        return (kind,), _flush(modes, _fused(kind))
    if name in _SPECIAL:
        return (kind,), _flush(modes, _SPECIAL[name](kind))
    if name in _PLAIN:
        return (kind,), _flush(modes, _PLAIN[name])
    if name == "bfe" and opcode[1] in ("s32", "u32"):
        return (np.uint32,), _bit_field(kind)
    if name in _WORDS and opcode[1:] == ("b32",):
        return (np.uint32,), _WORDS[name]
    raise PtxError(f"unknown instruction {'.'.join(opcode)}")


def _flush(modes: set[str], function: Function) -> Function:
    if "ftz" not in modes:
        return function
    return lambda *operands: flushed(function(*(flushed(x) for x in operands)))


def _comparison(relation: str, kind: type, opcode: tuple[str, ...]) -> Function:
    floats = issubclass(kind, np.floating)
    if len(opcode) > 3 and opcode[2] != "ftz":
        raise PtxError(f"unknown instruction {'.'.join(opcode)}")
    if relation in ("num", "nan"):
        return lambda a, b: (np.isnan(a) | np.isnan(b)) == (relation == "nan")
    unordered = floats and relation not in _COMPARE
    compare = _COMPARE[relation[:-1] if unordered else relation]
    if not floats:
        return compare
    if unordered:  # `geu`: also when one is NaN
        return lambda a, b: compare(a, b) | np.isnan(a) | np.isnan(b)
    return lambda a, b: compare(a, b) & ~(np.isnan(a) | np.isnan(b))


def _shift(name: str, kind: type) -> Function:
    """A shift by the width or more leaves 0, or the sign."""
    bits = 8 * np.dtype(kind).itemsize
    shift = np.left_shift if name == "shl" else np.right_shift

    def by(a: np.ndarray, amount: np.ndarray) -> np.ndarray:
        most = bits - 1
        moved = shift(a, np.minimum(amount, most).astype(kind))
        beyond = (
            a >> kind(most) if name == "shr" and issubclass(kind, np.signedinteger) else kind(0)
        )
        return np.where(amount > most, beyond, moved)

    return by


def _product(name: str, mode: str, kind: type) -> tuple[tuple[type, ...], Function]:
    if issubclass(kind, np.floating):
        if name == "mad":
            raise PtxError("mad of floats")
        return (kind,), np.multiply
    wide = _KINDS["s" if issubclass(kind, np.signedinteger) else "u"]
    wider = wide.get(16 * np.dtype(kind).itemsize)
    if mode == "lo":
        function: Function = np.multiply
        result: type = kind
    elif wider is not None and mode == "wide":
        function, result = lambda a, b: a.astype(wider) * b.astype(wider), wider
    elif wider is not None and mode == "hi":
        bits = wider(8 * np.dtype(kind).itemsize)
        result = kind
        function = lambda a, b: ((a.astype(wider) * b.astype(wider)) >> bits).astype(kind)  # noqa: E731
    else:
        raise PtxError(f"unknown product {name}.{mode}")
    if name == "mul":
        return (kind,), function
    return (kind, kind, result), lambda a, b, c: function(a, b) + c


def _fused(kind: type) -> Function:
    wide = _WIDER[kind]
    return lambda a, b, c: (a.astype(wide) * b + c).astype(kind)


def _conversion(opcode: tuple[str, ...]) -> tuple[tuple[type, ...], Function]:
    modes, to, source = set(opcode[1:-2]), opcode[-2], opcode[-1]
    if modes - {"rn", "rzi", "ftz"}:
        raise PtxError(f"unknown instruction {'.'.join(opcode)}")
    if source == "bf16" and to == "f32":
        return (np.uint16,), lambda x: (x.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if to == "bf16" and source == "f32":
        return (np.float32,), to_bfloat16
    if to == "bf16x2" and source == "f32":
        return (
            (np.float32,),
            lambda high, low: (
                (to_bfloat16(high).astype(np.uint32) << np.uint32(16)) | to_bfloat16(low)
            ),
        )
    target = type_of(to)
    if "rzi" in modes:
        return (type_of(source),), lambda x: np.trunc(x).astype(target)
    return (type_of(source),), lambda x: x.astype(target)


def to_bfloat16(x: np.ndarray) -> np.ndarray:
    """Bits of the nearest bfloat16, ties to even."""
    bits = x.view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)
    return np.where(np.isnan(x), np.uint32(0x7FFF), rounded).astype(np.uint16)


def _quotient(kind: type) -> Function:
    if issubclass(kind, np.floating):  # div.rn
        return np.divide

    def divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:  # towards zero, as in C
        return ((abs(a) // abs(b)) * np.sign(a) * np.sign(b)).astype(kind)

    return divide if issubclass(kind, np.signedinteger) else np.floor_divide


def _extreme(name: str) -> Callable[[type], Function]:
    of_floats, of_ints = (np.fmin, np.minimum) if name == "min" else (np.fmax, np.maximum)
    return lambda kind: of_floats if issubclass(kind, np.floating) else of_ints


_SPECIAL: dict[str, Callable[[type], Function]] = {
    "div": _quotient,
    "rem": lambda kind: np.fmod,
    "sqrt": lambda kind: np.sqrt,
    "min": _extreme("min"),
    "max": _extreme("max"),
}


def _bit_field(kind: type) -> Function:
    """`length` bits from `start` on, of a signed type with the sign of the highest."""
    signed, one = issubclass(kind, np.signedinteger), np.uint32(1)

    def field(a: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
        if (length > 31).any() or (start + length > 32).any():
            raise PtxError("a bit field that leaves its word")
        bits = (a >> start) & ((one << length) - one)
        sign = (one << length) >> one
        return (bits ^ sign) - sign if signed else bits

    return field


def _permute(a: np.ndarray, b: np.ndarray, choice: np.ndarray) -> np.ndarray:
    """Each nibble of `choice` names a byte of b:a; a nibble of 8 and more repeats its sign."""
    pool = np.stack([a, b], 1).view(np.uint8)  # [threads, 8]
    nibbles = (choice[:, None] >> np.arange(0, 16, 4, dtype=np.uint32)) & np.uint32(15)
    taken = np.take_along_axis(pool, (nibbles & 7).astype(np.int64), 1)
    signs = np.where(taken >= 128, np.uint8(255), np.uint8(0))
    return np.where(nibbles > 7, signs, taken).astype(np.uint8).view(np.uint32)[:, 0]


def _logic3(a: np.ndarray, b: np.ndarray, c: np.ndarray, table: np.ndarray) -> np.ndarray:
    result = np.zeros_like(a)
    for row in range(8):
        term = (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
        result |= np.where((table >> np.uint32(row)) & 1, term, np.uint32(0))
    return result


_WORDS: dict[str, Function] = {"prmt": _permute, "lop3": _logic3}
