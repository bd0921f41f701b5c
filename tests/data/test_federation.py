"""Federation.from_arrays: users' own arrays become a data set with a natural partition."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from c2v_sim.data.federation import Federation
from c2v_sim.data.partition import make_partition

GENERATOR = np.random.default_rng(0)
IMAGES = GENERATOR.integers(0, 256, (60, 8, 8, 3), dtype=np.uint8)
FEATURES = GENERATOR.normal(size=(60, 5))
Y = GENERATOR.integers(0, 4, 60)
IDS = np.arange(60) % 6


def test_images_stay_uint8_and_are_split_per_client():
    federation = Federation.from_arrays(IMAGES, Y, IDS)
    data, partition = federation.dataset, federation.partition
    assert data.x_train.dtype == torch.uint8
    assert data.x_train.shape == (48, 8, 8, 3)
    assert data.x_test.shape == (12, 8, 8, 3)
    assert data.y_train.dtype == torch.int64
    assert data.class_names == ("0", "1", "2", "3")
    assert (partition.sizes == 8).all()
    assert [len(ids) for ids in partition.test] == [2] * 6
    assert partition.convention == "natural, test set 0.2 of each client"


def test_each_sample_goes_to_its_client_once():
    x = np.arange(60, dtype=np.float64)[:, None]
    federation = Federation.from_arrays(x, Y, IDS, test_fraction=0.35)
    data = federation.dataset
    for client in range(6):
        train = data.x_train[federation.partition.train[client], 0].int().numpy()
        test = data.x_test[federation.partition.test[client], 0].int().numpy()
        assert len(test) == 3
        assert sorted([*train, *test]) == np.flatnonzero(client == IDS).tolist()
        assert data.y_train[federation.partition.train[client]].tolist() == Y[train].tolist()
        assert data.y_test[federation.partition.test[client]].tolist() == Y[test].tolist()


def test_given_test_arrays_are_used_as_they_are():
    federation = Federation.from_arrays(
        FEATURES,
        Y,
        IDS,
        x_test=FEATURES[:4],
        y_test=Y[:4],
        client_ids_test=[5, 0, 5, 2],
        class_names=list("abcde"),
    )
    data = federation.dataset
    assert data.x_train.dtype == data.x_test.dtype == torch.float32
    np.testing.assert_array_equal(data.x_train, FEATURES.astype(np.float32))
    assert [ids.tolist() for ids in federation.partition.test] == [[1], [], [3], [], [], [0, 2]]
    assert data.classes == 5
    assert (data.mean, data.std) == ((), ())
    assert federation.partition.convention == "natural, test set given"


def test_tensors_lists_and_string_ids():
    names = [f"hospital {i}" for i in IDS]
    federation = Federation.from_arrays(
        torch.tensor(FEATURES, dtype=torch.bfloat16, requires_grad=True), torch.tensor(Y), names
    )
    assert federation.partition.clients == 6
    assert federation.dataset.x_train.dtype == torch.float32
    arrays = Federation.from_arrays(torch.tensor(IMAGES), Y.tolist(), torch.tensor(IDS))
    assert arrays.partition.sha256 == federation.partition.sha256
    assert arrays.dataset.sha256 == Federation.from_arrays(IMAGES, Y, IDS).dataset.sha256


def test_default_normalisation_is_that_of_the_training_images():
    data = Federation.from_arrays(IMAGES, Y, IDS).dataset
    scaled = data.x_train.numpy() / 255.0
    np.testing.assert_allclose(data.mean, scaled.mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(data.std, scaled.std((0, 1, 2)), rtol=1e-12)
    black = Federation.from_arrays(np.zeros_like(IMAGES), Y, IDS).dataset
    assert (black.mean, black.std) == ((0.0,) * 3, (1.0,) * 3)
    given_ = Federation.from_arrays(IMAGES, Y, IDS, mean=[0.5] * 3, std=(1, 1, 1)).dataset
    assert (given_.mean, given_.std) == ((0.5,) * 3, (1.0,) * 3)


def test_statistics_over_several_slices():
    images = np.random.default_rng(1).integers(0, 256, (2500, 2, 3, 1), dtype=np.uint8)
    data = Federation.from_arrays(images, np.arange(2500) % 3, np.arange(2500) % 9).dataset
    np.testing.assert_allclose(data.std, [(data.x_train.numpy() / 255.0).std()], rtol=1e-12)


def test_seed_and_content_decide_the_hashes():
    def made(x=IMAGES, **options):
        return Federation.from_arrays(x, Y, IDS, **options).dataset.sha256

    assert made() == made()
    assert made(seed=1) != made(seed=2)
    assert made() != made(255 - IMAGES)


def test_read_only_and_reversed_arrays_are_copied():
    fixed = IMAGES[::-1].copy()
    fixed.setflags(write=False)
    test = {"x_test": IMAGES[::-1], "y_test": Y[::-1], "client_ids_test": IDS}
    data = Federation.from_arrays(fixed, Y, IDS, **test).dataset
    assert torch.equal(data.x_train, data.x_test)
    assert data.y_test.tolist() == Y[::-1].tolist()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=19, max_size=60), st.floats(0.5, 0.999), st.integers(0, 9)
)
def test_every_client_keeps_a_training_sample(ids, fraction, seed):
    x = np.arange(len(ids), dtype=np.float32)[:, None]
    y = np.zeros(len(ids), int)
    federation = Federation.from_arrays(x, y, ids, test_fraction=fraction, seed=seed)
    assert federation.partition.clients == len(set(ids))
    assert federation.partition.sizes.min() >= 1
    everything = np.concatenate([federation.dataset.x_train, federation.dataset.x_test])[:, 0]
    assert sorted(everything) == list(range(len(ids)))
    for train, test in zip(federation.partition.train, federation.partition.test, strict=True):
        held = len(train) + len(test)
        assert held - 1 >= len(test) or held == 1
        assert abs(len(test) - fraction * held) <= 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"x": IMAGES[..., 0]},
            r"x must be uint8 images .*got uint8 \(60, 8, 8\); grey images are x",
        ),
        ({"x": Y}, r"x must be uint8 images .*got int64 \(60,\)"),
        ({"x": FEATURES[:, 0]}, r"x must be .*got float64 \(60,\)"),
        ({"x": np.where(FEATURES > 2, np.nan, FEATURES)}, "x contains NaN"),
        ({"y": Y[:-1]}, r"y must be \[60\], one integer .*got int64 \(59,\)"),
        ({"y": Y / 2}, r"y must be \[60\].*got float64"),
        ({"y": Y - 1}, "y must be >= 0, got -1"),
        ({"client_ids": IDS[:3]}, r"client_ids must be \[60\], one integer or string .*\(3,\)"),
        ({"client_ids": IDS / 2}, "client_ids must be .*float64"),
        ({"x_test": FEATURES}, "x_test, y_test and client_ids_test, or none"),
        ({"x_test": FEATURES, "y_test": Y[1:], "client_ids_test": IDS}, r"y_test must be \[60\]"),
        ({"x_test": FEATURES[:, 1:], "y_test": Y, "client_ids_test": IDS}, "agree in shape"),
        ({"x_test": IMAGES, "y_test": Y, "client_ids_test": IDS}, "agree in shape and dtype"),
        ({"x_test": FEATURES, "y_test": Y, "client_ids_test": IDS + 1}, r"clients \[6\] without"),
        ({"test_fraction": 1.0}, r"test_fraction must be in \(0, 1\), got 1.0"),
        ({"test_fraction": 0}, r"test_fraction must be in \(0, 1\), got 0"),
        ({"test_fraction": 0.05}, "0.05 leaves no test sample in any of the 6 clients"),
        ({"client_ids": range(60)}, "0.2 leaves no test sample in any of the 60 clients"),
        (
            {"x_test": FEATURES[:0], "y_test": Y[:0], "client_ids_test": IDS[:0]},
            "x_test is empty",
        ),
        ({"class_names": ["a", "b"]}, "2 names, but y contains class 3"),
        ({"mean": (0.5,)}, "both mean and std"),
        ({"mean": (0.5,), "std": (1.0,)}, "scale float features beforehand"),
        ({"x": IMAGES, "mean": (0.5,), "std": (1.0,)}, "need 3 values"),
        ({"x": IMAGES, "mean": (0.5,) * 3, "std": (1.0, 0.0, 1.0)}, "std positive"),
        ({"x": FEATURES[:0], "y": Y[:0], "client_ids": IDS[:0]}, "x is empty"),
    ],
)
def test_bad_arrays_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Federation.from_arrays(**{"x": FEATURES, "y": Y, "client_ids": IDS, **changes})


def test_partition_of_other_data_is_refused():
    small = Federation.from_arrays(FEATURES, Y, IDS)
    large = make_partition("iid", np.zeros(500, int), np.zeros(0, int), clients=3, seed=0)
    with pytest.raises(ValueError, match=r"training sample 499, but user has 48"):
        Federation(small.dataset, large)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1, 2, 3], "y has 3 classes from 1 to 3, but none is 0; number the classes from 0"),
        ([0, 1, 3], "y has 3 classes from 0 to 3, but none is 2"),
        ([0, 5, 10**9], r"must be below \d+, got 1000000000; number the classes from 0"),
        ([0, 1, -1], "y must be >= 0, got -1; number the classes from 0"),
        ([0.0, 1.0, 2.0], r"got float64 \(30,\); number the classes from 0"),
    ],
)
def test_labels_that_are_not_numbered_from_0_are_refused_with_the_remedy(labels, message):
    x, y = np.zeros((30, 4), np.float32), np.array(labels * 10)
    with pytest.raises(ValueError, match=message):
        Federation.from_arrays(x, y, np.arange(30) % 3)
    mapped = Federation.from_arrays(x, y, np.arange(30) % 3, map_labels=True)  # as it says
    assert mapped.dataset.class_names == tuple(map(str, sorted(labels)))


def test_named_classes_may_be_without_samples():
    x, y = np.zeros((30, 4), np.float32), np.array([1, 3, 3] * 10)
    federation = Federation.from_arrays(x, y, np.arange(30) % 5, class_names=list("abcd"))
    assert federation.dataset.classes == 4
