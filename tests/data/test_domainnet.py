"""DomainNet read from a miniature tree of the official format: zips, lists, damage, resumption."""

import io
import shutil
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from c2v_sim import Federation, load_dataset, make_partition
from c2v_sim.data.sources import domainnet
from c2v_sim.data.sources.domainnet import DOMAINS, chosen_classes
from c2v_sim.system.errors import DataError

TRAIN, TEST, SEED = 3, 1, 0  # images of a class and domain


def picture(domain, label, index):
    """Encoded image of its own size; quickdraw is grey PNG in the original too."""
    generator = np.random.default_rng([DOMAINS.index(domain), label, index])
    shape = (20 + label % 7, 24) if domain == "quickdraw" else (20 + label % 7, 24, 3)
    buffer = io.BytesIO()
    image = Image.fromarray(generator.integers(0, 256, shape, dtype=np.uint8))
    image.save(buffer, "PNG" if domain == "quickdraw" else "JPEG")
    return buffer.getvalue()


def path_of(domain, label, index):
    suffix = "png" if domain == "quickdraw" else "jpg"
    return f"{domain}/thing_{label}/{domain}_{label:03}_{index:06}.{suffix}"


def write_tree(folder, labels):
    folder.mkdir(parents=True)
    for domain in DOMAINS:
        lines = {"train": [], "test": []}
        with zipfile.ZipFile(folder / f"{domain}.zip", "w") as archive:
            for label in labels:
                for index in range(TRAIN + TEST):
                    path = path_of(domain, label, index)
                    archive.writestr(path, picture(domain, label, index))
                    lines["train" if index < TRAIN else "test"].append(f"{path} {label}")
        for split, text in lines.items():
            (folder / f"{domain}_{split}.txt").write_text("\n".join(text) + "\n")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The chosen classes and three others, once; tests copy it before they change it."""
    chosen = chosen_classes(SEED).tolist()
    others = [label for label in range(345) if label not in chosen][:3]
    root = tmp_path_factory.mktemp("data")
    write_tree(root / "domainnet", sorted(chosen + others))
    return root


@pytest.fixture
def data_dir(written, tmp_path):
    shutil.copytree(written / "domainnet", tmp_path / "domainnet")
    return tmp_path


def load(folder, **options):
    return load_dataset("domainnet", data_dir=folder, **{"progress": False, **options})


def test_images_labels_and_domains_are_those_of_the_lists(data_dir):
    dataset = load(data_dir, require_real_data=True)
    chosen = chosen_classes(SEED)
    assert len(set(chosen.tolist())) == 50
    assert dataset.x_train.shape == (6 * 50 * TRAIN, 64, 64, 3)
    assert dataset.class_names == tuple(f"thing_{label}" for label in chosen)
    assert (dataset.name, dataset.domain_names) == ("domainnet", DOMAINS)
    assert (dataset.mean, dataset.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    expected_labels = np.repeat(np.arange(50), TRAIN)
    assert dataset.y_train.tolist() == np.tile(expected_labels, 6).tolist()
    assert dataset.domain_test.tolist() == np.repeat(np.arange(6), 50 * TEST).tolist()
    for domain, row in ((0, 7), (3, 100), (5, 149)):
        label, index = chosen[row // TRAIN], row % TRAIN
        content = picture(DOMAINS[domain], label, index)
        with Image.open(io.BytesIO(content)) as image:
            expected = np.asarray(image.convert("RGB").resize((64, 64), Image.BILINEAR))
        assert np.array_equal(dataset.x_train[domain * 50 * TRAIN + row].numpy(), expected)


def test_ten_clients_a_domain(data_dir):
    dataset = load(data_dir)
    partition = make_partition(
        "by-domain",
        dataset.y_train.numpy(),
        dataset.y_test.numpy(),
        clients_per_domain=10,
        domain_train=dataset.domain_train.numpy(),
        domain_test=dataset.domain_test.numpy(),
    )
    federation = Federation(dataset, partition)
    assert federation.partition.clients == 60
    assert federation.partition.domains[37] == 3
    assert set(dataset.domain_train[partition.train[37]].tolist()) == {3}


def test_the_seed_chooses_the_classes():
    assert chosen_classes(0).tolist() == chosen_classes(0).tolist()
    assert chosen_classes(0).tolist() != chosen_classes(1).tolist()
    expected = np.random.default_rng([4, 1]).choice(345, 50, replace=False)
    assert chosen_classes(4).tolist() == sorted(expected.tolist())


def test_unpacked_folders_give_the_same_data(data_dir):
    from_zips = load(data_dir).sha256
    own = data_dir / "domainnet"
    for file in own.glob("decoded-*"):
        file.unlink()
    for domain in DOMAINS:
        with zipfile.ZipFile(own / f"{domain}.zip") as archive:
            archive.extractall(own)
        (own / f"{domain}.zip").unlink()
    assert load(data_dir).sha256 == from_zips


def test_a_finished_domain_is_not_decoded_again(data_dir, monkeypatch):
    original, decoded = domainnet.decode_all, []

    def stops_at_painting(names, read, size, what, progress):
        if what.startswith("painting"):
            raise KeyboardInterrupt
        decoded.append(what)
        return original(names, read, size, what, progress)

    monkeypatch.setattr(domainnet, "decode_all", stops_at_painting)
    with pytest.raises(KeyboardInterrupt):
        load(data_dir)
    assert decoded == ["clipart train", "clipart test", "infograph train", "infograph test"]

    def counted(names, read, size, what, progress):
        decoded.append(what)
        return original(names, read, size, what, progress)

    decoded.clear()
    monkeypatch.setattr(domainnet, "decode_all", counted)
    first = load(data_dir)
    assert {what.split()[0] for what in decoded} == {"painting", "quickdraw", "real", "sketch"}
    decoded.clear()
    for domain in DOMAINS:  # no longer needed
        (data_dir / "domainnet" / f"{domain}.zip").unlink()
    again = load(data_dir)
    assert not decoded
    assert torch.equal(first.x_train, again.x_train)


def test_other_lists_and_a_damaged_cache_are_decoded_anew(data_dir, capsys):
    own = data_dir / "domainnet"
    whole = load(data_dir)
    cache = next(own.glob("decoded-real-*"))
    content = bytearray(cache.read_bytes())
    content[-5] ^= 1
    cache.write_bytes(content)
    assert load(data_dir).sha256 == whole.sha256
    assert "decoded-real-" in capsys.readouterr().err
    lines = (own / "real_train.txt").read_text().splitlines()
    kept = [line for line in lines if int(line.split()[1]) in chosen_classes(SEED)][:-1]
    (own / "real_train.txt").write_text("\n".join(kept))
    assert len(load(data_dir).y_train) == len(whole.y_train) - 1


def damage_truncate(own):
    content = (own / "sketch.zip").read_bytes()
    (own / "sketch.zip").write_bytes(content[: len(content) // 2])


def damage_bytes(own):
    content = bytearray((own / "sketch.zip").read_bytes())
    for at in range(200, len(content) // 2, 50):
        content[at] ^= 255
    (own / "sketch.zip").write_bytes(content)


def damage_lacking(own):
    with zipfile.ZipFile(own / "sketch.zip", "w") as archive:
        archive.writestr("sketch/thing_0/x.jpg", b"")


def damage_image(own):
    with zipfile.ZipFile(own / "sketch.zip") as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(own / "sketch.zip", "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content[: len(content) // 3])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_truncate, r"sketch\.zip is incomplete or damaged .*fetch it again"),
        (damage_bytes, r"sketch\.zip is incomplete or damaged"),
        (damage_lacking, r"sketch\.zip lacks 200 of 200 listed images, the first is sketch/thing"),
        (damage_image, r"sketch\.zip is incomplete or damaged \(sketch/thing_\d+/sketch_\d+"),
    ],
)
def test_a_partial_or_corrupt_archive_is_named_and_refused(data_dir, damage, message):
    damage(data_dir / "domainnet")
    with pytest.raises(DataError, match=message):
        load(data_dir)
    assert not list((data_dir / "domainnet").glob("decoded-sketch-*"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("clipart/a/b.jpg", "line 1 must be 'path label'.*got 'clipart/a/b.jpg'"),
        ("clipart/a/b.jpg 345", r"label in 0\.\.344"),
        ("../../secret.jpg 3", "points outside the folder"),
    ],
)
def test_strange_lines_are_refused(data_dir, line, message):
    (data_dir / "domainnet" / "clipart_train.txt").write_text(line + "\n")
    with pytest.raises(DataError, match=message):
        load(data_dir)


def test_lists_that_disagree_about_a_class_are_refused(data_dir):
    file = data_dir / "domainnet" / "real_test.txt"
    a, b = chosen_classes(SEED)[:2]
    file.write_text(f"{path_of('real', a, 0)} {b}\n")
    with pytest.raises(DataError, match=rf"real_test.txt has real/thing_{a}.* as class {b}"):
        load(data_dir)


def test_incomplete_data_is_an_error_absent_data_a_stand_in(data_dir, tmp_path_factory, capsys):
    (data_dir / "domainnet" / "quickdraw.zip").unlink()
    (data_dir / "domainnet" / "real_test.txt").unlink()
    with pytest.raises(DataError, match=r"no real_test\.txt, quickdraw\.zip; place the six"):
        load(data_dir)
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(DataError, match=r"clipart_train\.txt, .*sketch\.zip; place the six arch"):
        load(empty, require_real_data=True)
    dataset = load(empty, train_size=20, test_size=10)
    assert dataset.name == "domainnet-standin(shapes)"
    assert "STAND-IN DATA" in capsys.readouterr().err
