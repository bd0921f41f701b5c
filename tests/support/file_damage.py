"""Structured damage: the bytes of a good file → many bad ones, each with what was done to it.

`damages(path, content, marker)` chooses by the file's kind. Everything is drawn from a seed, so
that a case has a name that finds it again. `marker` is a file that a pickle creates when it is
executed.
"""

import io
import json
import pickle
import random
import struct
import tomllib
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tomli_w

Damage = tuple[str, bytes]
DEPTH = 100_000
BOMB_BYTES = 6 * 2**30  # far beyond what a reader may use
ODD_VALUES = (None, True, -1, 0, 2**70, 1.5, float("nan"), float("inf"), "", "x", "\0", [], ["x"])
ODD_VALUES += ([[1]], {}, {"a": 1}, "9" * 50, -(2**63), 1e308)


class Creates:
    """A pickle of this creates a file when it is loaded."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple:
        return Path.touch, (self.marker,)


def damages(
    path: Path, content: bytes, marker: Path, seed: int = 0, flips: int = 12
) -> list[Damage]:
    """All damage that fits the kind of file that `path` is."""
    out = list(general(content, marker, random.Random(f"{seed} {path.name}"), flips))
    kind = path.suffix
    if kind in (".npz", ".pth", ".zip"):
        out += in_zip(content, marker)
    return out + list(OF_KIND.get(kind, lambda _: ())(content))


def general(content: bytes, marker: Path, rng: random.Random, flips: int) -> Iterator[Damage]:
    size = len(content)
    yield "empty", b""
    yield "one zero byte", b"\0"
    yield "zeros", bytes(size)
    yield "random bytes", rng.randbytes(min(size, 4096))
    yield "not UTF-8", b"\xff\xfe" + content
    yield "twice", content + content
    yield "halves swapped", content[size // 2 :] + content[: size // 2]
    for cut in (
        1,
        size // 4,
        size // 2,
        size - 1,
        *(rng.randrange(1, size) for _ in range(flips // 2)),
    ):
        yield f"cut to {cut}", content[:cut]
    for number in range(flips):
        changed = bytearray(content)
        for _ in range(rng.choice((1, 1, 2, 8))):
            changed[rng.randrange(size)] ^= 1 << rng.randrange(8)
        yield f"bits flipped {number}", bytes(changed)
        at = rng.randrange(size)
        yield f"bytes replaced {number}", content[:at] + rng.randbytes(8) + content[at + 8 :]
    for protocol in (0, 2, 5):
        yield f"pickle {protocol}", pickle.dumps(Creates(marker), protocol)
        yield f"pickled list {protocol}", pickle.dumps([Creates(marker)] * 3, protocol)
    yield "pickle with a huge memo", b"\x80\x02]r\xff\xff\xff\x7f."
    yield "pickle of huge bytes", b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"."


# ---- zip archives and npy members ------------------------------------------------------------


def in_zip(content: bytes, marker: Path) -> Iterator[Damage]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    first, *others = members
    yield "no members", zipped({})
    for name in members:
        yield f"without {name}", zipped({k: v for k, v in members.items() if k != name})
        yield f"{name} empty", zipped(members | {name: b""})
        yield f"{name} is a pickle", zipped(members | {name: pickle.dumps(Creates(marker))})
        if name.endswith(".npy"):
            for what, array in odd_arrays(members[name], marker):
                yield f"{name} {what}", zipped(members | {name: array})
    rotated = dict(zip(members, [*(members[n] for n in others), members[first]], strict=True))
    yield "contents of members swapped", zipped(rotated)
    largest = max(members, key=lambda name: len(members[name]))
    yield f"{largest} is a bomb", zip_bomb(members, largest)
    yield (
        "encrypted flag",
        content.replace(b"PK\x01\x02\x14\0\x14\0\0", b"PK\x01\x02\x14\0\x14\0\1"),
    )


def zipped(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def odd_arrays(member: bytes, marker: Path) -> Iterator[tuple[str, bytes]]:
    """The array with another dtype or shape, and headers that promise what is not there."""
    array = np.lib.format.read_array(io.BytesIO(member))
    shapes = {
        "0-d": np.zeros((), array.dtype),
        "2-d": np.atleast_1d(array)[None],
        "none": array.ravel()[:0],
    }
    kinds = ["f8", "U8", "S4", "bool", "c16", "M8[s]", "i1", "u8"]
    for kind in kinds:
        yield f"as {kind}", npy(np.zeros(array.shape, kind))
    yield "of numbers that are not finite", npy(np.full(array.shape, np.nan))
    yield "of negative numbers", npy(np.full(array.shape, -1))
    yield "of large numbers", npy(np.full(array.shape, 2**62))
    yield "as records", npy(np.zeros(array.shape, [("a", "i4"), ("b", "U3")]))
    for name, other in shapes.items():
        yield f"of shape {name}", npy(other)
    objects = np.empty(2, dtype=object)
    objects[:] = [Creates(marker), Creates(marker)]
    yield "of objects", npy(objects, allow_pickle=True)
    data = npy(array)
    length = struct.unpack("<H", data[8:10])[0]
    for shape in (
        "(30000000000,)",
        "(-1,)",
        "(1.5,)",
        "(2**70,)",
        "(" * 200,
        "()",
        "('a',)",
        "(10**30,)",
    ):
        header = (
            f"{{'descr': '{array.dtype.str}', 'fortran_order': False, 'shape': {shape}, }}".encode()
        )
        yield (
            f"claims {shape[:20]}",
            data[:8] + struct.pack("<H", len(header)) + header + data[10 + length :],
        )
    yield "header of 60 KB", data[:8] + struct.pack("<H", 60_000) + b"{" * 60_000


def npy(array: np.ndarray, allow_pickle: bool = False) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, array, allow_pickle=allow_pickle)
    return out.getvalue()


def zip_bomb(members: dict[str, bytes], name: str) -> bytes:
    """An archive whose member `name` inflates to BOMB_BYTES; its checksum is wrong, at the end."""
    chunk = 2**24
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(bytes(chunk)) + packer.flush(zlib.Z_FULL_FLUSH)
    content = block * (BOMB_BYTES // chunk) + zlib.compressobj(9, zlib.DEFLATED, -15).flush()
    plain = zipped({k: v for k, v in members.items() if k != name})
    with zipfile.ZipFile(io.BytesIO(plain)) as archive:
        records = archive.filelist
        start = archive.start_dir
    directory = plain[start : plain.rindex(b"PK\5\6")]
    packed, text = len(content), name.encode()
    # Sizes beyond 4 GB stand in an extra field (zip64).
    extra = struct.pack("<HHQQ", 1, 16, BOMB_BYTES, packed)
    common = struct.pack(
        "<HHHHHIIIHH", 45, 0, 8, 0, 33, 1, 0xFFFFFFFF, 0xFFFFFFFF, len(text), len(extra)
    )
    local = b"PK\3\4" + common + text + extra
    entry = (
        b"PK\1\2"
        + struct.pack("<H", 45)
        + common
        + struct.pack("<HHHII", 0, 0, 0, 0, start)
        + text
        + extra
    )
    body = plain[:start] + local + content
    count, whole = len(records) + 1, directory + entry
    end = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, count, count, len(whole), len(body), 0)
    return body + whole + end


# ---- texts -----------------------------------------------------------------------------------


def variants(data: object, path: str = "") -> Iterator[tuple[str, object]]:
    """The data with one value replaced by something else, or left out, wherever it stands."""
    for odd in ODD_VALUES:
        if type(odd) is not type(data) or odd != data:
            yield f"{path or 'all'} = {odd!r}", odd
    if isinstance(data, dict):
        for key, value in data.items():
            yield f"without {path}.{key}", {k: v for k, v in data.items() if k != key}
            for what, other in variants(value, f"{path}.{key}"):
                yield what, data | {key: other}
        yield f"{path} with an unknown key", data | {"frobnicate": 1}
    if isinstance(data, list) and data:
        for what, other in variants(data[0], f"{path}[0]"):
            yield what, [other, *data[1:]]
        yield f"{path} shorter", data[1:]


def in_json(content: bytes) -> Iterator[Damage]:
    yield from deep(content)
    for what, data in variants(json.loads(content)):
        yield what, json.dumps(data).encode()


def in_json_lines(content: bytes) -> Iterator[Damage]:
    first, *others = content.splitlines(keepends=True)
    yield from deep(content)
    yield "lines swapped", b"".join([*others, first])
    for what, data in variants(json.loads(first)):
        yield what, b"".join([json.dumps(data).encode() + b"\n", *others])


def in_toml(content: bytes) -> Iterator[Damage]:
    yield from deep(content)
    yield "deep table", content + b"\nx = " + b"{a=" * 2000
    yield "a number of many digits", b"seed = " + b"9" * 5000
    yield "a number of many hex digits", b"seed = 0x" + b"f" * 50_000
    yield "a number of many hex digits for a text", b"dataset = 0x" + b"f" * 50_000
    for what, data in variants(tomllib.loads(content.decode())):
        try:
            text = tomli_w.dumps(data).encode()
        except (TypeError, ValueError, AttributeError):  # TOML has no None
            continue
        yield what, text


def deep(content: bytes) -> Iterator[Damage]:
    yield "deep lists", b"x = " + b"[" * DEPTH
    yield "deep JSON", b"[" * DEPTH + b"]" * DEPTH
    yield "deep objects", b'{"a":' * DEPTH
    yield "deep lists after the text", content.rstrip() + b"\n" + b"[" * DEPTH


# ---- tensors ---------------------------------------------------------------------------------


def in_safetensors(content: bytes) -> Iterator[Damage]:
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    for claimed in (0, 1, length - 1, length + 1, 2**40, 2**63, 2**64 - 1):
        yield f"header of {claimed} bytes", struct.pack("<Q", claimed) + content[8:]
    for text in (b"[" * DEPTH, b'{"a":' * DEPTH, b"{}", b"[]", b"null"):
        yield f"header {text[:6]!r}", struct.pack("<Q", len(text)) + text + data
    for what, other in variants(header):
        text = json.dumps(other).encode()
        yield f"header {what}", struct.pack("<Q", len(text)) + text + data
    names = [name for name in header if name != "__metadata__"]
    for name in names:
        for kind in (
            "F64",
            "F16",
            "BF16",
            "F8_E5M2",
            "F8_E8M0",
            "F4",
            "BOOL",
            "U64",
            "C64",
            "I8",
            "Q9",
        ):
            text = json.dumps(header | {name: header[name] | {"dtype": kind}}).encode()
            yield f"{name} as {kind}", struct.pack("<Q", len(text)) + text + data


# ---- images ----------------------------------------------------------------------------------


def in_png(content: bytes) -> Iterator[Damage]:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    def image(width: int, height: int, depth: int, colour: int, *more: bytes) -> bytes:
        head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
        return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + b"".join(more) + chunk(b"IEND", b"")

    zeros = zlib.compress(bytes(40_000_000), 9)
    yield "a bomb of 12,000 pixels a side", image(12_000, 12_000, 1, 0, chunk(b"IDAT", zeros))
    yield "a bomb of 60,000 pixels a side", image(60_000, 60_000, 8, 2, chunk(b"IDAT", zeros))
    yield "of no width", image(0, 5, 8, 2, chunk(b"IDAT", zlib.compress(b"")))
    yield "of 2**31 pixels", image(2**31 - 1, 2**31 - 1, 16, 6)
    yield (
        "text that inflates",
        image(4, 4, 8, 2, chunk(b"zTXt", b"a\0\0" + zeros), chunk(b"IDAT", zeros)),
    )
    yield "a profile that inflates", image(4, 4, 8, 2, chunk(b"iCCP", b"a\0\0" + zeros))


OF_KIND = {
    ".json": in_json,
    ".jsonl": in_json_lines,
    ".toml": in_toml,
    ".safetensors": in_safetensors,
    ".png": in_png,
}
