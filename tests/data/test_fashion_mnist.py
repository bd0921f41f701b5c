"""Fashion-MNIST in all the places where its files may be, on a miniature and on the real data."""

import gzip
import hashlib
import socket
import struct

import numpy as np
import pytest
import torch

from c2v_sim import Federation, RunConfig, Simulator
from c2v_sim.data.dataset import content_hash
from c2v_sim.data.load import load_dataset
from c2v_sim.data.partition import make_partition
from c2v_sim.data.sources import fashion_mnist, shapes
from c2v_sim.system.errors import DataError


def idx(array):
    """The published form, written independently of the reader."""
    sizes = b"".join(struct.pack(">i", n) for n in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """name -> content of four small files, with the published numbers replaced by theirs."""
    rng = np.random.default_rng(0)
    arrays, files = {}, {}
    for field, count in (("x_train", 50), ("y_train", 50), ("x_test", 20), ("y_test", 20)):
        images = field[0] == "x"
        high, shape = (256, (count, 28, 28)) if images else (10, (count,))
        array = rng.integers(0, high, shape, dtype=np.uint8)
        name = fashion_mnist.FILES[field][0]
        files[name] = idx(array)
        packed = hashlib.md5(gzip.compress(files[name])).hexdigest()
        monkeypatch.setitem(fashion_mnist.FILES, field, (name, count, packed))
        tensor = torch.from_numpy(array)
        arrays[field] = tensor[..., None] if images else tensor.long()
    monkeypatch.setattr(fashion_mnist, "SHA256", content_hash(arrays))
    monkeypatch.setattr(fashion_mnist, "SYSTEM_FOLDER", tmp_path / "usr")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monkeypatch.setattr(
            fashion_mnist, "URL", f"http://127.0.0.1:{probe.getsockname()[1]}/fashion/"
        )
    monkeypatch.setattr(shapes, "TRAIN_SIZE", 60)
    monkeypatch.setattr(shapes, "TEST_SIZE", 60)
    return files


def place(files, folder, packed=True):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        if packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("where", ["", "fashion-mnist", "FashionMNIST/raw", "../usr"])
def test_its_files_are_found(tiny, tmp_path, where, packed):
    place(tiny, tmp_path / "data" / where, packed)
    data = load_dataset("fashion-mnist", data_dir=tmp_path / "data", require_real_data=True)
    assert (data.name, data.sha256) == ("fashion-mnist", fashion_mnist.SHA256)
    assert data.x_train.shape == (50, 28, 28, 1)
    assert (data.source == fashion_mnist.PACKAGE) == (where == "../usr")
    federation = Federation(data, make_partition("iid", data.y_train, data.y_test, clients=5))
    config = RunConfig(rounds=1, local_epochs=1, participation=0.4)  # the cnn, on grey images
    assert 0 <= Simulator(federation, config).run().final.accuracy <= 1


def test_a_stand_in_is_named_where_it_cannot_be_had(tiny, tmp_path, capsys):
    data = load_dataset("fashion-mnist", data_dir=tmp_path)
    assert data.name == "fashion-mnist-standin(shapes)"
    assert "say nothing about Fashion-MNIST" in capsys.readouterr().err
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz.*Debian's package"):
        load_dataset("fashion-mnist", data_dir=tmp_path, require_real_data=True)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda content: content[:-1], "must hold 39,200 bytes of samples, got 39,199"),
        (lambda content: content + b"x", "must hold 39,200 bytes of samples, got more"),
        (lambda content: b"\0\0\x08\x01" + content[4:], r"must begin .* got 00000801"),
        (lambda content: b"", "must begin"),
        (lambda content: content[:-1] + b"\x07", "content hash"),
    ],
)
def test_other_files_are_refused(tiny, tmp_path, damage, problem):
    name = fashion_mnist.FILES["x_train"][0]
    place(tiny | {name: damage(tiny[name])}, tmp_path)
    with pytest.raises(DataError, match=problem):
        load_dataset("fashion-mnist", data_dir=tmp_path)


def test_a_broken_package_is_named(tiny, tmp_path):
    place(tiny, tmp_path)
    path = tmp_path / f"{fashion_mnist.FILES['y_test'][0]}.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte\.gz \(truncated or damaged"):
        load_dataset("fashion-mnist", data_dir=tmp_path)


def test_the_real_data_has_the_published_numbers(tmp_path):
    if fashion_mnist.find(tmp_path) is None:
        pytest.skip(f"real data: {fashion_mnist.PACKAGE} is not installed")
    data = load_dataset("fashion-mnist", data_dir=tmp_path, require_real_data=True)
    assert torch.bincount(data.y_train).tolist() == [6000] * 10
    std, mean = torch.std_mean(data.x_train.float() / 255, correction=0)
    assert (float(mean), float(std)) == pytest.approx((*data.mean, *data.std), abs=6e-5)
