"""Tensors that are made once and then read, unless their file is damaged."""

import pytest
import torch

from c2v_sim.system import tensor_file

TENSORS = {"x": torch.arange(6.0).view(2, 3), "y": torch.tensor([1, 2])}


def must_not_be_called():
    raise AssertionError("made anew")


def test_what_was_made_is_read_the_next_time(tmp_path, capsys):
    path = tmp_path / "new" / "folder" / "cache.safetensors"
    assert tensor_file.cached(path, lambda: TENSORS) is TENSORS
    again = tensor_file.cached(path, must_not_be_called)
    assert all(torch.equal(again[name], tensor) for name, tensor in TENSORS.items())
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert tensor_file.cached(path, lambda: TENSORS) is TENSORS
    assert "cache.safetensors is damaged" in capsys.readouterr().err
    assert path.read_bytes() == content
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_the_caller_may_choose_the_checksum(tmp_path):
    path = tmp_path / "cache.safetensors"
    tensor_file.cached(path, lambda: TENSORS, digest=lambda tensors: "mine")
    tensor_file.cached(path, must_not_be_called, digest=lambda tensors: "mine")
    assert tensor_file.read(path) is None


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "cache.safetensors"
    assert tensor_file.cached(path, lambda: TENSORS) is TENSORS
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith(f"warning: cannot cache the data in {path.parent}")


@pytest.mark.parametrize("kind", [MemoryError, AttributeError])
def test_what_is_no_damage_passes_through(tmp_path, monkeypatch, kind):
    path = tmp_path / "cache.safetensors"
    tensor_file.write(path, TENSORS)

    def fails(*_, **__):
        raise kind

    with pytest.raises(kind):
        tensor_file.cached(path, must_not_be_called, digest=fails)
    monkeypatch.setattr(tensor_file, "safe_open", fails)
    with pytest.raises(kind):
        tensor_file.read(path)
