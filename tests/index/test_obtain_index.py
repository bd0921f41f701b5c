"""The one way to an index: from a file, from the shared cache, or built and kept there."""

import dataclasses
import os
import subprocess
import sys
import threading

import pytest
import torch
from planted import planted
from safetensors import safe_open

from c2v_sim.index import build
from c2v_sim.index.build import build_index, cache_path, obtain_index
from c2v_sim.index.client_index import FORMAT, ClientIndex
from c2v_sim.index.config import IndexConfig
from c2v_sim.index.encoders.embed import given_embeddings
from c2v_sim.index.naive import NAIVE, Naive
from c2v_sim.system import tensor_file
from c2v_sim.system.errors import Interrupted

TINY = IndexConfig(epochs=2, hidden=32, batch_size=16, threads=1)
SHARED_BY_ALL = {"lanes": 2, "device": "cpu"}  # settings that decide no bit of an index here


@pytest.fixture(scope="module")
def made():
    federation, images, labels = planted(clients_per_domain=1, samples=10, classes=4)
    embeddings = given_embeddings(federation.dataset, images, labels)
    return federation, embeddings, build_index(federation, TINY, embeddings=embeddings)


def same(a, b):
    return torch.equal(a.feature, b.feature) and torch.equal(a.label, b.label)


def test_built_once_then_found_then_built_anew_where_it_is_damaged(
    made, tmp_path, monkeypatch, capsys
):
    federation, embeddings, expected = made
    options = {"embeddings": embeddings, "data_dir": tmp_path}
    points = []
    first = obtain_index(
        federation, TINY, **options, on_point=lambda training: points.append(len(training.curve))
    )
    assert points == [1, 2]
    assert same(first, expected)
    path = cache_path(federation, TINY, embeddings, tmp_path)
    assert list((tmp_path / "indices").iterdir()) == [path]
    assert path.parent == tmp_path / "indices"
    with monkeypatch.context() as patch:
        patch.setattr(build, "build_index", None)  # would fail if it were called
        again = obtain_index(federation, dataclasses.replace(TINY, **SHARED_BY_ALL), **options)
    assert again.provenance == first.provenance
    assert capsys.readouterr().err == ""
    path.write_bytes(path.read_bytes()[:-1])
    assert same(obtain_index(federation, TINY, **options), expected)
    assert "it is built anew" in capsys.readouterr().err
    assert same(ClientIndex.load(path, federation), expected)


@pytest.mark.parametrize("change", [{"seed": 1}, {"epochs": 3}, {"index": "feature-average"}])
def test_other_settings_are_another_file(made, tmp_path, change):
    federation, embeddings, _ = made
    usual, other = (
        cache_path(federation, config, embeddings, tmp_path)
        for config in (TINY, dataclasses.replace(TINY, **change))
    )
    assert usual != other


def test_a_file_is_taken_as_it_is_or_refused(made, tmp_path):
    federation, _, expected = made
    expected.save(tmp_path / "mine.safetensors")
    found = obtain_index(federation, IndexConfig(seed=9), file=tmp_path / "mine.safetensors")
    assert same(found, expected)
    other = planted(clients_per_domain=1, samples=10, classes=4, seed=1)[0]
    with pytest.raises(ValueError, match="another federation"):
        obtain_index(other, TINY, file=tmp_path / "mine.safetensors")


def test_stopped_and_gone_on_with(made, tmp_path):
    federation, embeddings, expected = made
    options = {"embeddings": embeddings, "data_dir": tmp_path}
    file, stop = tmp_path / "training.safetensors", threading.Event()
    with pytest.raises(Interrupted):
        obtain_index(
            federation, TINY, **options, checkpoint=file, on_point=lambda _: stop.set(), stop=stop
        )
    assert not (tmp_path / "indices").exists()
    points = []
    found = obtain_index(
        federation, TINY, **options, checkpoint=file, on_point=lambda t: points.append(len(t.curve))
    )
    assert points == [2]
    assert same(found, expected)
    assert found.provenance["seconds"] is None


def test_a_kind_of_ones_own_is_one_entry(made, tmp_path, monkeypatch):
    federation, embeddings, _ = made
    first_of_all = Naive(
        lambda images, partition, y, classes, seed: images[:6, :3] + classes, lambda _: 3
    )
    monkeypatch.setitem(NAIVE, "first", first_of_all)
    config = IndexConfig()
    object.__setattr__(config, "index", "first")  # the choices were listed before
    found = obtain_index(federation, config, embeddings=embeddings, data_dir=tmp_path)
    assert torch.equal(found.feature, embeddings.images[:6, :3] + 4)
    assert found.parts == ("feature",)


def test_a_cache_of_something_else_is_built_anew(made, tmp_path, capsys):
    """Sound files, with the right checksum of the wrong tensors."""
    federation, embeddings, expected = made
    options = {"embeddings": embeddings, "data_dir": tmp_path}
    obtain_index(federation, TINY, **options)
    (file,) = (tmp_path / "indices").iterdir()
    with safe_open(str(file), framework="pt") as saved:
        whole = {name: saved.get_tensor(name) for name in saved.keys()}  # noqa: SIM118
    for tensors in ({"feature": torch.ones(3, 2)}, {"other": torch.ones(1)}, whole):
        about = {"c2v_sim": "client index", "format": str(FORMAT), "provenance": "{}"}
        tensor_file.save(file, tensors, about | {"sha256": tensor_file.checksum(tensors)})
        assert same(obtain_index(federation, TINY, **options), expected)
        assert f"the index {file} is damaged" in capsys.readouterr().err


# ---- a cache that cannot be written ---------------------------------------------------------


def test_a_folder_that_cannot_be_written_is_a_warning(made, tmp_path, capsys):
    federation, embeddings, expected = made
    (tmp_path / "indices").write_text("a file, not a folder")  # works for root too
    found = obtain_index(federation, TINY, embeddings=embeddings, data_dir=tmp_path)
    assert same(found, expected)
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"warning: cannot cache the index in {tmp_path / 'indices'} (")
    assert "--data-dir" in warning
    below = tmp_path / "indices" / "below"
    assert same(obtain_index(federation, TINY, embeddings=embeddings, data_dir=below), expected)


# Where a word tells so, the write of the cache waits for one more line from its parent.
BUILD = """
import resource, signal, sys, torch
from planted import planted
from c2v_sim.index.build import obtain_index
from c2v_sim.index.config import IndexConfig
from c2v_sim.index.encoders.embed import given_embeddings
from c2v_sim.system import tensor_file
federation, images, labels = planted(clients_per_domain=1, samples=10, classes=4)
embeddings = given_embeddings(federation.dataset, images, labels)
write = tensor_file.save_file
def waiting(*arguments, **options):
    write(*arguments, **options)
    print("written", flush=True)
    sys.stdin.readline()
if sys.argv[2] == "wait":
    tensor_file.save_file = waiting
else:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
config = IndexConfig(epochs=2, hidden=32, batch_size=16, threads=1)
index = obtain_index(federation, config, embeddings=embeddings, data_dir=sys.argv[1])
print(index.feature.sum(dtype=torch.float64).item().hex())
"""


def started(folder, word):
    support = os.path.join(os.path.dirname(__file__), "..", "support")
    return subprocess.Popen(
        [sys.executable, "-P", "-c", BUILD, str(folder), word],
        env=os.environ | {"PYTHONPATH": support},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def total(index):
    return index.feature.sum(dtype=torch.float64).item().hex() + "\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a POSIX resource limit")
def test_a_full_disk_is_a_warning_and_leaves_no_half_file(made, tmp_path):
    out, errors = started(tmp_path, "full").communicate(timeout=120)
    assert out == total(made[2]), errors
    assert errors.count("warning: cannot cache the index") == 1
    assert "File too large" in errors
    assert "Traceback" not in errors
    assert list((tmp_path / "indices").iterdir()) == []


def test_two_processes_that_build_the_same_index_at_the_same_time_both_end_well(made, tmp_path):
    federation, embeddings, expected = made
    both = [started(tmp_path, "wait"), started(tmp_path, "wait")]
    for process in both:  # both are in the middle of writing the same file
        assert process.stdout.readline() == "written\n"
    for process in both:
        out, errors = process.communicate("go on\n", timeout=120)
        assert process.returncode == 0, errors
        assert out == total(expected)
        assert errors == ""
    path = cache_path(federation, TINY, embeddings, tmp_path)
    assert same(ClientIndex.load(path, federation), expected)
    assert list((tmp_path / "indices").iterdir()) == [path]
