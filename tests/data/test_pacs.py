"""PACS: both forms give the same data, the split is as documented, and damage is named."""

import dataclasses
import hashlib
import re

import numpy as np
import pytest
import torch
from PIL import Image
from real_data import real_data_dir

from c2v_sim.data.dataset import content_hash
from c2v_sim.data.load import load_dataset
from c2v_sim.data.sources import pacs
from c2v_sim.index import __main__ as index
from c2v_sim.run import __main__ as run
from c2v_sim.system.errors import DataError

CELLS = [(domain, kind) for domain in pacs.DOMAIN_NAMES for kind in pacs.CLASS_NAMES]
COUNTS = dict.fromkeys(pacs.DOMAIN_NAMES, (5, 6, 5, 7, 10, 5, 5))


def test_published_counts():
    assert [sum(pacs.COUNTS[domain]) for domain in pacs.DOMAIN_NAMES] == [1670, 2048, 2344, 3929]


@pytest.fixture
def tiny(monkeypatch):
    """{name: image uint8 [64, 64, 3]} of a PACS with few images, every one of its own colours."""
    monkeypatch.setattr(pacs, "COUNTS", COUNTS)
    rng = np.random.default_rng(0)
    images = {}
    for domain in pacs.DOMAIN_NAMES:
        for kind, count in zip(pacs.CLASS_NAMES, COUNTS[domain], strict=True):
            for n in range(count):
                coarse = rng.integers(256, size=(2, 2, 3), dtype=np.uint8)
                images[f"{domain}/{kind}/{n:03}.png"] = coarse.repeat(32, 0).repeat(32, 1)
    return images


def npz_arrays(images):
    cells = [name.split("/")[:2] for name in images]
    return {
        "x": np.stack(list(images.values())),
        "label": np.array([pacs.CLASS_NAMES.index(k) for _, k in cells], dtype=np.uint8),
        "domain": np.array([pacs.DOMAIN_NAMES.index(d) for d, _ in cells], dtype=np.uint8),
        "names": np.array(list(images)),
        "class_names": np.array(pacs.CLASS_NAMES),
        "domain_names": np.array(pacs.DOMAIN_NAMES),
    }


def write_npz(images, folder):
    np.savez(folder / "pacs64.npz", **npz_arrays(images))


def write_tree(images, root):
    for name, image in images.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(root / name)


def load(folder, **options):
    return load_dataset("pacs", data_dir=folder, require_real_data=True, progress=False, **options)


# ---- reading --------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["", "PACS", "pacs"])
def test_a_tree_and_the_npz_give_the_same_data(tiny, tmp_path, place):
    """Images of 64×64 are not resampled, so that even the pixels agree."""
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    write_npz(dict(reversed(tiny.items())), one)  # the order inside must not matter
    write_tree(tiny, other / place)
    (other / place / "photo" / "dog" / "._000.png").write_text("not an image")
    (other / place / "photo" / "dog" / "Thumbs.db").write_text("not an image")
    first, second = load(one), load(other)
    assert first.name == second.name == "pacs"
    assert first.sha256 == second.sha256
    assert first.classes == 7
    assert first.domain_names == pacs.DOMAIN_NAMES
    assert first.standin_for is None
    assert first.x_train.shape[1:] == (64, 64, 3)
    for data in (first, second):
        assert "split 80/20" in data.source
        assert str(tmp_path) not in data.source


def test_every_image_keeps_its_label_and_domain(tiny, tmp_path):
    write_npz(tiny, tmp_path)
    data = load(tmp_path)
    by_pixels = {image.tobytes(): name for name, image in tiny.items()}
    seen = []
    for part in ("train", "test"):
        x, y, d = (getattr(data, f"{field}_{part}") for field in ("x", "y", "domain"))
        for image, label, domain in zip(x, y, d, strict=True):
            name = by_pixels[image.numpy().tobytes()]
            assert name.startswith(f"{pacs.DOMAIN_NAMES[domain]}/{pacs.CLASS_NAMES[label]}/")
            seen.append(name)
    assert sorted(seen) == sorted(tiny)


def test_the_split_is_the_documented_one(tiny, tmp_path):
    write_npz(tiny, tmp_path)
    data = load(tmp_path)
    expected = {"train": [], "test": []}
    for domain, kind in CELLS:
        names = [name for name in tiny if name.startswith(f"{domain}/{kind}/")]
        names.sort(key=lambda name: hashlib.sha256(name.encode()).hexdigest())
        fifth = int(len(names) * 0.2 + 1e-9)
        expected["test"] += names[:fifth]
        expected["train"] += names[fifth:]
    for part, names in expected.items():
        names.sort(key=lambda name: hashlib.sha256(name.encode()).hexdigest())
        pixels = np.stack([tiny[name] for name in names])
        assert np.array_equal(getattr(data, f"x_{part}").numpy(), pixels)


def test_sizes_take_the_first_of_the_mixed_order(tiny, tmp_path):
    write_npz(tiny, tmp_path)
    whole, part = load(tmp_path), load(tmp_path, train_size=50, test_size=3)
    assert torch.equal(part.x_train, whole.x_train[:50])
    assert torch.equal(part.domain_train, whole.domain_train[:50])
    assert len(part.domain_test) == 3
    assert len(part.domain_train.unique()) == 4
    assert "first 50 of 140 train images" in part.source
    assert part.sha256 != whole.sha256
    with pytest.raises(DataError, match="pacs: train_size must be at most 140, got 141"):
        load(tmp_path, train_size=141)


def test_images_of_other_sizes_and_kinds_are_resampled(tiny, tmp_path):
    write_tree(tiny, tmp_path)
    big = Image.fromarray(tiny["photo/dog/000.png"]).resize((227, 227), Image.Resampling.NEAREST)
    (tmp_path / "photo/dog/000.png").unlink()
    big.save(tmp_path / "photo/dog/000.JPG", quality=95)
    Image.new("L", (30, 50), 77).save(tmp_path / "sketch/dog/001.png")  # grey
    x = pacs.decode(tmp_path, ["photo/dog/000.JPG", "sketch/dog/001.png"], progress=False)
    assert np.abs(x[0].astype(int) - tiny["photo/dog/000.png"])[8:24, 8:24].max() <= 4
    assert (x[1] == 77).all()
    assert len(load(tmp_path).x_train) == 140


# ---- cache ----------------------------------------------------------------------------------


def test_images_are_decoded_once(tiny, tmp_path, monkeypatch, capsys):
    write_tree(tiny, tmp_path / "PACS")
    first = load(tmp_path)
    (cache,) = tmp_path.glob("pacs64-*.safetensors")
    with monkeypatch.context() as patch:
        patch.setattr(pacs, "decode", None)  # decoding again would fail
        assert load(tmp_path).sha256 == first.sha256
    assert capsys.readouterr().err == ""

    good = cache.read_bytes()
    cache.write_bytes(good[:-5] + bytes([good[-5] ^ 1]) + good[-4:])
    assert load(tmp_path).sha256 == first.sha256
    assert "damaged" in capsys.readouterr().err
    assert cache.read_bytes() == good


def test_a_changed_image_is_decoded_anew(tiny, tmp_path):
    write_tree(tiny, tmp_path)
    before = load(tmp_path)
    Image.new("RGB", (64, 64), (1, 2, 3)).save(tmp_path / "cartoon/horse/004.png")
    assert load(tmp_path).sha256 != before.sha256


def test_data_that_cannot_be_cached_is_still_returned(tiny, tmp_path, monkeypatch, capsys):
    write_tree(tiny, tmp_path)

    def full(path, tensors, digest):
        raise OSError("no space left")

    monkeypatch.setattr(pacs.tensor_file, "write", full)
    assert len(load(tmp_path).x_train) == 140
    assert re.search(r"warning: cannot cache .*no space left.*--data-dir", capsys.readouterr().err)


# ---- refusals -------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, 0.5, 0.9])
def test_a_damaged_image_is_named_and_refused(tiny, tmp_path, keep):
    write_tree(tiny, tmp_path)
    noise = np.random.default_rng(1).integers(256, size=(64, 64, 3), dtype=np.uint8)
    victim = tmp_path / "art_painting/guitar/003.png"
    Image.fromarray(noise).save(victim)
    victim.write_bytes(victim.read_bytes()[: int(keep * victim.stat().st_size)])
    with pytest.raises(
        DataError, match=r"cannot decode .*art_painting/guitar/003\.png.*replace it"
    ):
        load(tmp_path)
    assert not list(tmp_path.glob("*.safetensors*"))


def test_a_partial_tree_is_refused(tiny, tmp_path):
    write_tree(tiny, tmp_path / "PACS")
    for path in (tmp_path / "PACS" / "sketch").rglob("*.png"):
        path.unlink()
    (tmp_path / "PACS" / "photo" / "person" / "000.png").unlink()
    expected = r"photo/person has 4 of 5, sketch/dog has 0 of 5, sketch/elephant has 0 of 6 and 5 m"
    with pytest.raises(DataError, match=expected):
        load(tmp_path)


@pytest.mark.parametrize("keep", [0, 0.5, 0.99])
def test_a_truncated_npz_is_refused(tiny, tmp_path, keep):
    write_npz(tiny, tmp_path)
    path = tmp_path / "pacs64.npz"
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
    with pytest.raises(DataError, match=r"cannot read .*pacs64\.npz .*replace it"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda a: {"x": a["x"][:, :32]},
            r"x must be uint8 \[172, 64, 64, 3\], got uint8 \(172, 32",
        ),
        (lambda a: {"x": a["x"][1:]}, r"x must be uint8 \[172, 64, 64, 3\], got uint8 \(171, 64"),
        (lambda a: {"x": a["x"].astype(float)}, r"x must be uint8 .*, got float64"),
        (lambda a: {"label": a["label"].astype(float)}, "must be .* whole numbers .* float64"),
        (lambda a: {"label": np.float64(1)}, r"must be .* whole numbers .* float64 \(\)"),
        (lambda a: {"x": np.uint8(1)}, r"x must be uint8 .*, got uint8 \(\)"),
        (lambda a: {"domain_names": np.array("photo")}, "must be .* whole numbers below 1"),
        (lambda a: {"label": a["label"][1:]}, "cannot read"),
        (lambda a: {"label": a["label"] + 9}, "cannot read"),
        (lambda a: {"label": a["label"][::-1]}, "calls photo/dog/000.png a photo/person"),
        (lambda a: {"names": a["names"].astype(object)}, "cannot read"),
        (lambda a: {k: v[:-1] for k, v in a.items() if len(v) == 172}, "sketch/person has 4 of 5"),
    ],
)
def test_an_npz_with_other_contents_is_refused(tiny, tmp_path, change, message):
    arrays = npz_arrays(tiny)
    np.savez(tmp_path / "pacs64.npz", **arrays | change(arrays))
    with pytest.raises(DataError, match=message) as error:
        load(tmp_path)
    assert "pacs64.npz" in str(error.value)


# ---- stand-in -------------------------------------------------------------------------------


def test_standin_is_named_everywhere(tmp_path, capsys):
    data = load_dataset("pacs", data_dir=tmp_path, train_size=60, test_size=60)
    assert data.name == "pacs-standin(shapes)"
    assert data.standin_for == "pacs"
    assert len(data.domain_names) == 6
    (banner,) = [line for line in capsys.readouterr().err.splitlines() if "STAND-IN" in line]
    assert "say nothing about PACS" in banner
    assert "place there pacs64.npz, or the folders photo" in banner


def test_require_real_data_refuses_the_standin(tmp_path, capsys):
    with pytest.raises(DataError, match=r"pacs is not in .*place there pacs64\.npz.*--data-dir"):
        load(tmp_path)
    assert "STAND-IN" not in capsys.readouterr().err


# ---- through the commands ---------------------------------------------------------------------

BY_DOMAIN = ["--dataset", "pacs", "--require-real-data", "--partition", "by-domain"]


def test_a_run_by_domain(tiny, tmp_path):
    write_npz(tiny, tmp_path)
    out = tmp_path / "run"
    flags = ["--data-dir", str(tmp_path), "--clients-per-domain", "2", "--rounds", "1"]
    flags += ["--participation", "0.5", "--local-epochs", "1", "--batch-size", "16", "--out"]
    assert run.main([*BY_DOMAIN, *flags, str(out)]) == 0
    assert '"pacs"' in (out / "manifest.json").read_text()


def test_an_index_by_domain(tiny, tmp_path, capsys):
    write_npz(tiny, tmp_path)
    flags = ["--data-dir", str(tmp_path), "--clients-per-domain", "2", "--epochs", "1"]
    flags += ["--hidden", "32", "--threads", "1", "--out", str(tmp_path / "index")]
    assert index.main([*BY_DOMAIN, *flags]) == 0
    assert "index of pacs" in capsys.readouterr().err


# ---- the real thing -------------------------------------------------------------------------


def test_real_pacs():
    data = load(real_data_dir("pacs64.npz"))
    assert len(data.x_train) + len(data.x_test) == 9991
    for d, domain in enumerate(pacs.DOMAIN_NAMES):
        train, test = (
            torch.bincount(getattr(data, f"y_{part}")[getattr(data, f"domain_{part}") == d])
            for part in ("train", "test")
        )
        assert (train + test).tolist() == list(pacs.COUNTS[domain])
        assert test.tolist() == [count // 5 for count in pacs.COUNTS[domain]]
    tensors = {f.name: getattr(data, f.name) for f in dataclasses.fields(data)}
    assert data.sha256 == content_hash({k: v for k, v in tensors.items() if torch.is_tensor(v)})
