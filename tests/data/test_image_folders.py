"""Federations from a folder of images for each client."""

import numpy as np
import pytest
from PIL import Image

from c2v_sim import Federation
from c2v_sim.system.errors import DataError


def save(path, value, size=(8, 6)):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((*size, 3), value, dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def tree(root, part=""):
    for client, value in (("ada", 10), ("bob", 100)):
        for k in range(4):
            save(root / client / part / "cat" / f"{k}.png", value + k)
        save(root / client / part / ("dog" if client == "ada" else "ant") / "0.png", value + 9)


def load(root, **options):
    return Federation.from_image_folders(root, progress=False, **options)


def test_clients_classes_and_pixels(tmp_path):
    tree(tmp_path)
    (tmp_path / "ada" / "cat" / "notes.txt").write_text("not an image")
    (tmp_path / ".cache").mkdir()
    federation = load(tmp_path, test_fraction=0.4)
    dataset, partition = federation.dataset, federation.partition
    assert dataset.class_names == ("ant", "cat", "dog")
    assert dataset.name == tmp_path.name
    assert partition.clients == 2
    assert [len(ids) for ids in partition.test] == [2, 2]
    values = {
        (int(x[0, 0, 0]), int(y))
        for xs, ys in ((dataset.x_train, dataset.y_train), (dataset.x_test, dataset.y_test))
        for x, y in zip(xs, ys, strict=True)
    }
    cats = {(value + k, 1) for value in (10, 100) for k in range(4)}
    assert values == cats | {(19, 2), (109, 0)}
    assert all(int(dataset.x_train[i, 0, 0, 0]) < 50 for i in partition.train[0])  # ada's


def test_given_test_sets(tmp_path):
    tree(tmp_path, "train")
    save(tmp_path / "bob" / "test" / "owl" / "0.jpeg", 77)
    federation = load(tmp_path)
    assert federation.dataset.class_names == ("ant", "cat", "dog", "owl")
    assert [len(ids) for ids in federation.partition.train] == [5, 5]
    assert [len(ids) for ids in federation.partition.test] == [0, 1]


def test_other_sizes_are_resized_on_request_only(tmp_path):
    tree(tmp_path)
    save(tmp_path / "bob" / "cat" / "odd.png", 5, size=(9, 9))
    with pytest.raises(DataError, match=r"8×6 and .*odd\.png 9×9; give size=\(H, W\)"):
        load(tmp_path)
    assert load(tmp_path, size=(10, 12)).dataset.x_train.shape[1:] == (10, 12, 3)


def test_what_is_wrong_is_named(tmp_path):
    with pytest.raises(DataError, match="must hold a folder for each client"):
        load(tmp_path / "nowhere")
    tree(tmp_path)
    (tmp_path / "eve" / "cat").mkdir(parents=True)
    with pytest.raises(DataError, match=r"client .*eve has no image under <class>/"):
        load(tmp_path)
    save(tmp_path / "eve" / "train" / "cat" / "0.png", 1)
    with pytest.raises(DataError, match=r"eve has a folder `train` and .*ada has none"):
        load(tmp_path)


def test_a_broken_image_is_named(tmp_path):
    tree(tmp_path)
    whole = (tmp_path / "bob" / "cat" / "2.png").read_bytes()
    (tmp_path / "bob" / "cat" / "2.png").write_bytes(whole[:45])
    with pytest.raises(DataError, match=r"cannot read .*cat/2\.png"):
        load(tmp_path)
    (tmp_path / "bob" / "cat" / "2.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"cannot read .*cat/2\.png"):
        load(tmp_path)


def test_test_folders_must_hold_something(tmp_path):
    tree(tmp_path, "train")
    with pytest.raises(DataError, match=r"no client in .* has images under test/<class>/"):
        load(tmp_path)
