"""Loading by name, the Dataset's own checks, and the cache of the rendered data."""

import dataclasses
import hashlib
import os
import subprocess
import sys

import pytest
import torch

from c2v_sim.config import RunConfig
from c2v_sim.data.dataset import content_hash
from c2v_sim.data.load import DATASETS, default_data_dir, load_dataset
from c2v_sim.data.sources import shapes
from c2v_sim.data.sources.source import Source
from c2v_sim.models import MODELS
from c2v_sim.system.errors import DataError, Unreachable


@pytest.fixture
def small(tmp_path):
    return load_dataset("shapes", data_dir=tmp_path, train_size=90, test_size=60, progress=False)


def only_file(folder):
    (path,) = folder.iterdir()
    return path


def test_shapes_by_name(small, tmp_path):
    assert small.name == "shapes"
    assert small.standin_for is None
    assert small.x_train.shape == (90, 32, 32, 3)
    assert small.classes == 10
    assert small.domain_train.shape == (90,)
    assert str(tmp_path) not in small.source
    assert torch.equal(small.x_train, torch.from_numpy(shapes.render("train", 90)[0]))
    assert torch.equal(small.domain_test, torch.from_numpy(shapes.render("test", 60)[2]))


def test_batch_is_channels_last_for_free(small):
    batch = small.x_train[:8].permute(0, 3, 1, 2)
    assert batch.is_contiguous(memory_format=torch.channels_last)


def test_default_sizes():
    assert (shapes.TRAIN_SIZE, shapes.TEST_SIZE) == (50_000, 10_000)


def test_content_hash_is_as_documented(small):
    expected = hashlib.sha256()
    for field in ("x_train", "y_train", "x_test", "y_test", "domain_train", "domain_test"):
        tensor = getattr(small, field)
        kind = "uint8" if field[0] == "x" else "int64"
        size = "x".join(str(n) for n in tensor.shape)
        expected.update(f"{field} {kind} {size}\n".encode())
        expected.update(bytes(tensor.flatten().view(torch.uint8).tolist()))
    assert small.sha256 == expected.hexdigest()
    assert small.sha256 == "4f13be3d7ed45955240882520e6bd9ba74aec4a8da86e90973f976fbfe3c3229"


def test_content_hash_ignores_strides(small):
    tensors = {"x_train": small.x_train, "y_train": small.y_train}
    strided = {k: torch.stack([t, t], dim=-1)[..., 0] for k, t in tensors.items()}
    assert not strided["x_train"].is_contiguous()
    assert content_hash(strided) == content_hash(tensors)


# ---- refusals -------------------------------------------------------------------------------


def test_unknown_name_lists_the_known_ones(tmp_path):
    with pytest.raises(
        DataError,
        match="unknown data set 'mnist'; known: shapes, cifar10, fashion-mnist, shakespeare",
    ):
        load_dataset("mnist", data_dir=tmp_path)


@pytest.mark.parametrize("field", ["train_size", "test_size"])
def test_sizes_must_be_positive(tmp_path, field):
    with pytest.raises(DataError, match=f"shapes: {field} must be at least 1, got 0"):
        load_dataset("shapes", data_dir=tmp_path, **{field: 0})
    assert not list(tmp_path.iterdir())


def test_data_folder_must_not_be_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="is a file; give a folder"):
        load_dataset("shapes", data_dir=tmp_path / "file")


def test_a_new_data_folder_is_made_with_a_word(tmp_path, capsys):
    sizes = {"train_size": 20, "test_size": 10, "progress": False}
    load_dataset("shapes", data_dir=tmp_path / "new", **sizes)
    assert (
        f"the data folder {tmp_path / 'new'} did not exist; it is made" in capsys.readouterr().err
    )
    load_dataset("shapes", data_dir=tmp_path / "new", **sizes)
    assert capsys.readouterr().err == ""
    wrong = tmp_path / "mistyped" / "data"
    with pytest.raises(DataError, match="does not exist, nor the folder above it; correct it"):
        load_dataset("cifar10", data_dir=wrong)
    assert not wrong.parent.exists()


def test_a_data_folder_that_leads_back_to_itself_is_called_so(tmp_path, capsys):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(DataError, match="cannot be used: Too many levels of symbolic") as error:
        load_dataset("cifar10", data_dir=loop)
    assert "it is a symbolic link that leads back to itself" in str(error.value)
    assert "space" not in str(error.value)
    assert len(load_dataset("shapes", data_dir=loop, train_size=20, test_size=10).y_train) == 20
    assert "cannot cache" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid(), reason="must begin as root")
def test_a_data_folder_without_permission_is_called_so(for_everybody):
    """In a process that is not root: root may do everything."""
    folder = for_everybody / "closed"
    folder.mkdir(mode=0o700)
    script = (
        "import os, sys\nfrom c2v_sim import load_dataset\nos.setuid(65534)\n"
        "try:\n    load_dataset('cifar10', data_dir=sys.argv[1])\n"
        "except ValueError as error:\n    print(error)"
    )
    command = [sys.executable, "-P", "-c", script, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "cannot be used: Permission denied; change its permissions, or choose" in done.stdout
    assert "space" not in done.stdout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: {"x_train": d.x_train.double()}, r"x_train must be uint8 images \[N, H, W, C\]"),
        (lambda d: {"x_train": d.x_train.float()}, "train samples are .*float32, test .*uint8"),
        (lambda d: {"x_test": d.x_test.permute(0, 3, 1, 2)}, r"test samples \(3, 32, 32\)"),
        (lambda d: {"x_test": d.x_test[:, :16]}, r".* test samples \(16, 32, 3\)"),
        (lambda d: {"y_train": d.y_train[1:]}, r"y_train must be int64 \[90\], got .*\(89,\)"),
        (lambda d: {"y_train": d.y_train.int()}, r"y_train must be int64 \[90\], got torch.int32"),
        (lambda d: {"y_test": d.y_test + 1}, r"y_test must be in 0..9, got 1..10"),
        (lambda d: {"domain_train": None}, r"domain_train must be int64 \[90\], got None"),
        (lambda d: {"domain_test": d.domain_test - 1}, r"domain_test must be in 0..5, got -1..4"),
        (lambda d: {"std": (0.2, 0.0, 0.2)}, "std be positive"),
        (lambda d: {"mean": (0.5,)}, "mean and std must have 3 numbers"),
    ],
)
def test_dataset_checks_its_fields(small, change, message):
    with pytest.raises(DataError, match=message):
        dataclasses.replace(small, **change(small))


# ---- sources --------------------------------------------------------------------------------


def test_a_new_data_set_is_one_source(small, tmp_path, monkeypatch, capsys):
    """Loaded by name, with what it was asked for; where it is not there its stand-in is."""
    asked = []

    def load(request):
        asked.append(request)
        if request.folder == tmp_path / "empty":
            raise Unreachable("dots is not there")
        return small

    standin = shapes.stand_in("dots")
    monkeypatch.setitem(
        DATASETS, "dots", Source("Dots", load, standin=standin, remedy="draw it in {folder}")
    )
    assert load_dataset("dots", data_dir=tmp_path, seed=5, sample_fraction=0.3) is small
    assert (asked[0].folder, asked[0].seed, asked[0].sample_fraction) == (tmp_path, 5, 0.3)
    empty = {"data_dir": tmp_path / "empty", "train_size": 60, "test_size": 60}
    data = load_dataset("dots", **empty)
    assert (data.name, data.standin_for) == ("dots-standin(shapes)", "dots")
    expected = (
        "STAND-IN DATA: dots is not there, so this run uses rendered shapes instead and its "
        f"results say nothing about Dots; to get the real data, draw it in {tmp_path}/empty."
    )
    assert expected in capsys.readouterr().err
    for changes, options in (({}, {"require_real_data": True}), ({"standin": None}, {})):
        monkeypatch.setitem(DATASETS, "dots", dataclasses.replace(DATASETS["dots"], **changes))
        with pytest.raises(DataError, match=r"dots is not there; draw it in .*empty$"):
            load_dataset("dots", **empty, **options)


def test_facts_of_the_sources():
    def names(fact):
        return [name for name, source in DATASETS.items() if getattr(source, fact)]

    assert names("own_clients") == names("text") == names("model") == ["shakespeare"]
    assert names("chosen_by_seed") == ["shakespeare", "domainnet"]
    assert names("standin") == ["cifar10", "fashion-mnist", "shakespeare", "domainnet", "pacs"]
    settings = [field.name for field in dataclasses.fields(RunConfig)]
    for source in DATASETS.values():
        assert set(source.settings) <= set(settings)
        assert source.model in (None, *MODELS)


# ---- cache ----------------------------------------------------------------------------------


def load_again(folder):
    return load_dataset("shapes", data_dir=folder, train_size=90, test_size=60)


def test_second_load_reads_the_cache(small, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(shapes, "render", None)  # rendering again would fail
    again = load_again(tmp_path)
    assert again.sha256 == small.sha256
    assert torch.equal(again.x_test, small.x_test)
    assert capsys.readouterr().err == ""


def test_cache_key_has_version_and_sizes(small, tmp_path, monkeypatch):
    load_dataset("shapes", data_dir=tmp_path, train_size=91, test_size=60)
    monkeypatch.setattr(shapes, "RENDERER_VERSION", 999)
    load_again(tmp_path)
    assert len(list(tmp_path.iterdir())) == 3


def _flip(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    "damage",
    [_flip, lambda c: c[: len(c) // 2], lambda c: c[:5], lambda c: b"", lambda c: b"junk" * 100],
    ids=["one bit", "half", "five bytes", "empty", "junk"],
)
def test_damaged_cache_is_noticed_and_made_anew(small, tmp_path, capsys, damage):
    path = only_file(tmp_path)
    good = path.read_bytes()
    path.unlink()
    path.write_bytes(damage(good))
    again = load_again(tmp_path)
    assert again.sha256 == small.sha256
    warnings = [w for w in capsys.readouterr().err.splitlines() if w.startswith("warning")]
    assert len(warnings) == 1
    assert path.name in warnings[0]
    assert "making it anew" in warnings[0]
    assert only_file(tmp_path).read_bytes() == good


def test_data_that_cannot_be_cached_is_still_returned(tmp_path, capsys):
    (tmp_path / "file").write_text("")  # works for root too, unlike a read-only folder
    data = load_again(tmp_path / "file" / "below")
    assert len(data.x_train) == 90
    warnings = [w for w in capsys.readouterr().err.splitlines() if w.startswith("warning")]
    assert len(warnings) == 1
    assert "cannot cache" in warnings[0]
    assert "--data-dir" in warnings[0]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a POSIX resource limit")
def test_full_disk_leaves_no_rubbish(tmp_path):
    """A file-size limit stands for a full disk: the data comes back, no half file stays."""
    code = (
        "import resource, signal, sys\n"
        "from c2v_sim.data.load import load_dataset\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "data = load_dataset('shapes', data_dir=sys.argv[1], train_size=90, test_size=60)\n"
        "print(len(data.x_train))\n"
    )
    run = subprocess.run(
        [sys.executable, "-P", "-c", code, str(tmp_path)], capture_output=True, text=True
    )
    assert run.stdout.strip() == "90", run.stderr
    assert "cannot cache" in run.stderr
    assert not list(tmp_path.iterdir())


def test_default_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("C2V_DATA", str(tmp_path))
    assert default_data_dir() == tmp_path
    monkeypatch.setenv("C2V_DATA", "")
    assert default_data_dir().name == "c2v_sim"
