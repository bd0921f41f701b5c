"""Damage of an archive is named; nothing else is called damage."""

import io
import struct
import zipfile

import numpy as np
import pytest

from c2v_sim.system.archive import read_npz, read_zip

ARRAYS = {"ids": np.arange(40), "words": np.array(["iid", "natural"])}


@pytest.fixture
def path(tmp_path):
    np.savez_compressed(tmp_path / "arrays.npz", **ARRAYS)
    return tmp_path / "arrays.npz"


def same(arrays):
    return all(np.array_equal(arrays[name], array) for name, array in ARRAYS.items())


def test_arrays_come_back(path):
    assert same(read_npz(path, tuple(ARRAYS)))
    assert set(read_npz(path, ["ids"])) == {"ids"}


def test_every_damaged_byte_is_a_value_error_or_does_not_matter(path):
    content, noticed = path.read_bytes(), 0
    for at in range(len(content)):
        for damaged in (
            content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :],
            content[:at],
        ):
            path.write_bytes(damaged)
            try:
                assert same(read_npz(path, tuple(ARRAYS)))  # a date in a header, for example
            except ValueError:
                noticed += 1
    assert noticed > 1.5 * len(content)


def test_a_header_that_asks_for_too_much_is_not_believed(tmp_path):
    """Nobody has the memory that the damaged header says is needed."""
    array = io.BytesIO()
    np.save(array, np.zeros((11, 11, 11, 11, 11, 1), dtype=np.uint8))
    path = tmp_path / "huge.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ids.npy", array.getvalue())
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"(11, 11, 11, 11, 11, 1)", b"(99999999999999999999,)"))
    assert path.read_bytes() != whole
    with pytest.raises(ValueError, match=r"ids says that it is uint8 .*, but 161 KB are there"):
        read_npz(path, ["ids"])


def claiming(path, header, data=b"", **options):
    """An archive with right checksums, whose array `ids` has this header."""
    text = str(header).encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    with zipfile.ZipFile(path, "w", **options) as archive:
        content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data
        archive.writestr("ids.npy", content)


def test_a_sound_file_that_claims_30_gigabytes_is_refused_before_they_are_asked_for(
    tmp_path, monkeypatch
):
    header = {"descr": "|u1", "fortran_order": False, "shape": (30_000_000_000,)}
    claiming(tmp_path / "claims.npz", header, b"few")
    with pytest.raises(ValueError, match=r"uint8 \(30000000000,\), which is 30.0 GB, but 3 B are"):
        read_npz(tmp_path / "claims.npz", ["ids"])
    header["shape"] = (5_000_000,)  # a small file that unpacks to what nobody has
    bomb = tmp_path / "bomb.npz"
    claiming(bomb, header, bytes(5_000_000), compression=zipfile.ZIP_DEFLATED)
    assert bomb.stat().st_size < 10_000
    free = type("Free", (), {"available": 4_000_000})
    monkeypatch.setattr("c2v_sim.system.archive.psutil.virtual_memory", lambda: free)
    with pytest.raises(ValueError, match=r"need 5 MB of memory; 4 MB are free"):
        read_npz(bomb, ["ids"])


def test_a_caller_sees_the_headers_before_an_array_is_read(path, monkeypatch):
    seen = {}
    read_npz(path, ["ids"], seen.update)
    assert str(seen["ids"]) == "int64 (40,)"

    def refuse(headers):
        raise ValueError(f"not {headers['ids'].shape}")

    monkeypatch.setattr(zipfile.ZipFile, "read", None)
    with pytest.raises(ValueError, match=r"not \(40,\)"):
        read_npz(path, ["ids"], refuse)


def test_other_files_are_named_by_what_they_lack(path, tmp_path):
    with pytest.raises(ValueError, match=r"^There is no item named 'sizes\.npy'"):
        read_npz(path, ["ids", "sizes"])
    np.savez(path, ids=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="Object arrays cannot be loaded"):
        read_npz(path, ["ids"])
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ids.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", 4) + b"{'a(")
    with pytest.raises(ValueError, match=r"not an array|Cannot parse header"):
        read_npz(path, ["ids"])
    with pytest.raises(FileNotFoundError):
        read_npz(tmp_path / "absent.npz", ["ids"])


@pytest.mark.parametrize("kind", [MemoryError, AttributeError, TypeError])
def test_what_is_no_damage_passes_through(path, monkeypatch, kind):
    def fails(*_, **__):
        raise kind("not the file's fault")

    with monkeypatch.context() as patch:
        patch.setattr(np.lib.format, "read_array", fails)
        with pytest.raises(kind, match="not the file's fault"):
            read_npz(path, ["ids"])
    monkeypatch.setattr(zipfile.ZipFile, "read", fails)
    with pytest.raises(kind, match="not the file's fault"):
        list(read_zip(path, ["ids.npy"]))


def test_members_of_a_zip_archive(tmp_path):
    path = tmp_path / "some.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", b"first")
        archive.writestr("b", b"second")
    assert list(read_zip(path, ["b", "a"])) == [b"second", b"first"]
