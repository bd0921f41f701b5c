"""Partitioners against a slow re-implementation of the specification, and their promises."""

import hashlib
import os
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from c2v_sim.data import dirichlet
from c2v_sim.data.partition import PARTITIONERS, Partition, make_partition

Y = np.random.default_rng(5).integers(0, 4, 240)
Y_TEST = np.random.default_rng(6).integers(0, 4, 80)


def balanced(per_class, classes=10, seed=1):
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(classes), per_class))


def slow_per_client(y_train, y_test, clients, seed, concentration):
    """The specification sentence by sentence: one random number and one pop a sample."""
    generator = np.random.default_rng([seed, 0])
    classes = len(concentration)
    pools = []
    for y in (y_train, y_test):
        pools.append([[i for i in range(len(y)) if y[i] == c] for c in range(classes)])
    for side in pools:
        for pool in side:
            generator.shuffle(pool)
    r = generator.dirichlet(concentration, size=clients)
    result = []
    for side, y in zip(pools, (y_train, y_test), strict=True):
        held = []
        for i in range(clients):
            mine = []
            for _ in range(len(y) // clients):
                p = r[i] * [len(pool) > 0 for pool in side]
                if p.sum() < 1e-12:
                    p = np.array([float(len(pool)) for pool in side])
                label = np.searchsorted(np.cumsum(p / p.sum()), generator.random(), side="right")
                mine.append(side[label].pop())
            held.append(mine)
        result.append(held)
    return result


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("alpha", [1e-3, 0.1, 10.0])
def test_per_client_follows_the_specification(alpha, seed):
    y_train, y_test = balanced(100), balanced(20, seed=2)
    got = make_partition("dirichlet", y_train, y_test, clients=20, seed=seed, alpha=alpha)
    train, test = slow_per_client(y_train, y_test, 20, seed, np.full(10, alpha))
    assert [ids.tolist() for ids in got.train] == train
    assert [ids.tolist() for ids in got.test] == test


def test_prior_scales_alpha_by_class_shares():
    y_train = np.repeat([0, 1, 2], [60, 30, 10])
    got = make_partition("dirichlet", y_train, y_train, clients=10, seed=3, alpha=2.0, lda="prior")
    train, test = slow_per_client(y_train, y_train, 10, 3, 2.0 * np.array([0.6, 0.3, 0.1]))
    assert [ids.tolist() for ids in got.train] == train
    assert [ids.tolist() for ids in got.test] == test
    assert got.convention == "dirichlet prior alpha=2.0 equal sizes"


def slow_per_class(y_train, y_test, clients, seed, alpha):
    generator = np.random.default_rng([seed, 0])
    classes, n = y_train.max() + 1, len(y_train)
    while True:
        train, all_p = [[] for _ in range(clients)], []
        for c in range(classes):
            ids = np.flatnonzero(y_train == c)
            generator.shuffle(ids)
            p = generator.dirichlet(np.full(clients, alpha))
            p = np.array([p[i] if len(train[i]) < n / clients else 0 for i in range(clients)])
            all_p.append(p / p.sum())
            cuts = [int(np.floor(v * len(ids))) for v in np.cumsum(all_p[-1])]
            for i in range(clients):
                end = cuts[i] if i < clients - 1 else len(ids)
                train[i] += ids[cuts[i - 1] if i else 0 : end].tolist()
        if min(map(len, train)) >= 10:
            break
    test = [[] for _ in range(clients)]
    pools = [np.flatnonzero(y_test == c) for c in range(classes)]
    for c, ids in enumerate(pools):
        generator.shuffle(ids)
        for i, part in enumerate(np.split(ids, (np.cumsum(all_p[c]) * len(ids)).astype(int)[:-1])):
            test[i] += part.tolist()
    return train, test


@pytest.mark.parametrize("seed", range(4))
def test_per_class_follows_the_specification(seed):
    y_train, y_test = balanced(60), balanced(20, seed=2)
    got = make_partition(
        "dirichlet", y_train, y_test, clients=8, seed=seed, alpha=0.3, lda="per_class"
    )
    train, test = slow_per_class(y_train, y_test, 8, seed, 0.3)
    assert [ids.tolist() for ids in got.train] == train
    assert [ids.tolist() for ids in got.test] == test
    assert got.sizes.min() >= 10
    assert got.sizes.sum() == len(y_train)


def test_default_size_has_the_published_skew():
    y_train, y_test = balanced(5000), balanced(1000, seed=2)
    effective = {}
    for lda in ("per_client", "prior", "per_class"):
        got = make_partition("dirichlet", y_train, y_test, clients=100, seed=0, lda=lda)
        shares = np.array([np.bincount(y_train[ids], minlength=10) / len(ids) for ids in got.train])
        effective[lda] = np.mean(1 / (shares**2).sum(1))
        if lda != "per_class":
            assert (got.sizes == 500).all()
            assert all(len(ids) == 100 for ids in got.test)
    assert effective["per_client"] == pytest.approx(2.1, abs=0.2)
    assert effective["per_class"] == pytest.approx(1.9, abs=0.2)
    assert effective["prior"] == pytest.approx(1.2, abs=0.1)


def test_draw_at_the_rounded_end_takes_the_last_class_with_samples():
    classes, largest = next(
        (n, u)
        for u in [np.nextafter(1, 0)]  # the largest number that Generator.random returns
        for n in range(2, 100)
        if np.cumsum(np.full(n, 1 / n) / np.full(n, 1 / n).sum())[-1] <= u
    )
    left = np.full(classes + 1, 5)
    share = np.append(np.full(classes, 1 / classes), 0.0)
    labels = dirichlet._draw_labels(share, left, np.array([largest]))
    assert labels.tolist() == [classes - 1]
    assert left.tolist() == [5] * (classes - 1) + [4, 5]


def test_per_class_when_full_clients_draw_everything():
    # alpha → 0 gives a class to one client as a whole; a full one must hand it on.
    y = np.repeat(np.arange(8), 20)
    got = make_partition("dirichlet", y, y[:0], clients=4, seed=0, alpha=1e-30, lda="per_class")
    assert (got.sizes == 40).all()


def test_per_class_with_a_class_that_only_the_test_set_has():
    y = np.repeat(np.arange(4), 20)
    y_test = np.repeat(np.arange(5), 10)
    got = make_partition("dirichlet", y, y_test, clients=2, seed=0, alpha=1e-30, lda="per_class")
    assert sum(map(len, got.test)) == 50


def test_iid_uses_all_samples_in_nearly_equal_parts():
    got = make_partition("iid", Y, Y_TEST, clients=7, seed=0)
    assert sorted(np.concatenate(got.train)) == list(range(240))
    assert sorted(np.concatenate(got.test)) == list(range(80))
    assert set(got.sizes) == {34, 35}


def test_shards_hold_neighbouring_labels_and_matching_test_labels():
    y_train, y_test = balanced(60), balanced(20, seed=2)
    got = make_partition("shards", y_train, y_test, clients=10, seed=4)
    assert sorted(np.concatenate(got.train)) == list(range(600))
    for train, test in zip(got.train, got.test, strict=True):
        assert 1 <= len(set(y_train[train])) <= 2
        assert set(y_train[train]) == set(y_test[test])
    assert got.convention == "shards 2 per client"


def test_by_domain_numbers_clients_domain_by_domain():
    domain, domain_test = np.arange(240) % 3, np.arange(80) % 3
    got = make_partition(
        "by-domain", Y, Y_TEST, clients=12, seed=0, domain_train=domain, domain_test=domain_test
    )
    assert got.domains == (0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2)
    for client in range(12):
        assert set(domain[got.train[client]]) == {client // 4}
        assert set(domain_test[got.test[client]]) == {client // 4}
    # The specification's draws: per domain permute the training samples, then the test samples.
    generator = np.random.default_rng([0, 0])
    expected = generator.permutation(np.flatnonzero(domain == 0))
    expected_test = generator.permutation(np.flatnonzero(domain_test == 0))
    np.testing.assert_array_equal(np.concatenate(got.train[:4]), expected)
    np.testing.assert_array_equal(np.concatenate(got.test[:4]), expected_test)
    again = make_partition(
        "by-domain", Y, Y_TEST, domain_train=domain, domain_test=domain_test, clients_per_domain=4
    )
    assert again.sha256 == got.sha256


def test_natural_follows_the_ids_in_ascending_order():
    owner = np.array([30, 10, 30, 20, 10])
    got = make_partition(
        "natural", owner * 0, owner[:2] * 0, natural_train=owner, natural_test=np.array([20, 30])
    )
    assert [ids.tolist() for ids in got.train] == [[1, 4], [3], [0, 2]]
    assert [ids.tolist() for ids in got.test] == [[], [0], [1]]
    words = make_partition(
        "natural", owner * 0, owner[:0], clients=3, natural_train=np.array(list("cacba"))
    )
    assert [ids.tolist() for ids in words.train] == [[1, 4], [3], [0, 2]]


def test_few_test_samples_still_reach_some_clients():
    got = make_partition("dirichlet", Y, Y_TEST[:3], clients=10, seed=0)
    assert [len(ids) for ids in got.test] == [1, 1, 1] + [0] * 7


@st.composite
def requests(draw):
    kind = draw(st.sampled_from(sorted(PARTITIONERS)))
    clients = draw(st.integers(1, 12))
    sizes = draw(st.integers(12, 150)), draw(st.integers(0, 60))
    classes = draw(st.integers(1, 6))
    generator = np.random.default_rng(draw(st.integers(0, 99)))
    y_train, y_test = (generator.integers(0, classes, size) for size in sizes)
    # Every client occurs in the first samples; test samples belong to known clients.
    owner = np.concatenate([np.arange(clients), generator.integers(0, clients, sizes[0] - clients)])
    options = {
        "dirichlet": {
            "alpha": 10.0 ** draw(st.integers(-310, 308)),
            "lda": draw(st.sampled_from(["per_client", "prior"])),
        },
        "shards": {"shards_per_client": draw(st.integers(1, sizes[0] // clients))},
        "by-domain": {"domain_train": owner, "domain_test": owner[-1:].repeat(sizes[1])},
        "natural": {"natural_train": owner, "natural_test": owner[-1:].repeat(sizes[1])},
    }
    return kind, y_train, y_test, clients, options.get(kind, {})


@settings(max_examples=150, deadline=None)
@given(requests(), st.integers(0, 1000))
def test_every_id_at_most_once_and_no_empty_client(request_, seed):
    kind, y_train, y_test, clients, options = request_
    got = make_partition(kind, y_train, y_test, clients=clients, seed=seed, **options)
    train, test = np.concatenate(got.train), np.concatenate(got.test)
    assert got.clients == len(got.test) == clients
    assert got.sizes.min() >= 1
    assert len(set(train)) == len(train)
    assert len(set(test)) == len(test)
    assert set(train) <= set(range(len(y_train)))
    assert set(test) <= set(range(len(y_test)))
    if kind == "dirichlet":
        assert (got.sizes == len(y_train) // clients).all()
    else:
        assert (len(train), len(test)) == (len(y_train), len(y_test))
    again = make_partition(kind, y_train, y_test, clients=clients, seed=seed, **options)
    assert again.sha256 == got.sha256


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 6), st.floats(1e-300, 1e300), st.integers(0, 99))
def test_per_class_gives_a_partition_or_says_what_to_change(clients, alpha, seed):
    request_ = {"clients": clients, "seed": seed, "alpha": alpha, "lda": "per_class"}
    try:
        got = make_partition("dirichlet", Y, Y_TEST, **request_)
    except ValueError:
        with pytest.raises(ValueError, match="use fewer clients than"):
            make_partition("dirichlet", Y, Y_TEST, **request_)
        return
    assert got.sizes.min() >= 10
    assert sorted(np.concatenate(got.train)) == list(range(240))
    assert sorted(np.concatenate(got.test)) == list(range(80))


def test_per_class_gives_up_instead_of_hanging(monkeypatch):
    monkeypatch.setattr(dirichlet, "MAX_ATTEMPTS", 20)
    with pytest.raises(ValueError, match=r"20 draws .* fewer clients than 24, an alpha larger"):
        make_partition("dirichlet", Y, Y_TEST, clients=24, seed=0, alpha=0.01, lda="per_class")


@pytest.mark.parametrize("kind", ["dirichlet", "iid", "shards", "by-domain"])
def test_seed_changes_the_partition(kind):
    options = {"domain_train": Y, "domain_test": Y_TEST} if kind == "by-domain" else {}
    hashes = {
        make_partition(kind, Y, Y_TEST, clients=8, seed=seed, **options).sha256 for seed in range(5)
    }
    assert len(hashes) == 5


DOMAINS = {"domain_train": Y % 3, "domain_test": Y_TEST % 3}


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("lda", {}, "one of dirichlet, iid, shards, by-domain, natural, got 'lda'"),
        ("dirichlet", {"clients": 241}, r"clients must be 1\.\.240 .*got 241"),
        ("iid", {"clients": 0}, r"clients must be 1\.\.240 .*got 0"),
        ("shards", {"clients": None}, r"clients must be 1\.\.240 .*got None"),
        ("dirichlet", {"alpha": 0.0}, "alpha must be a positive number, got 0"),
        ("dirichlet", {"alpha": -1.0}, "alpha must be a positive number, got -1"),
        ("dirichlet", {"alpha": float("nan")}, "alpha must be a positive number, got nan"),
        ("dirichlet", {"alpha": float("inf")}, "alpha must be a positive number, got inf"),
        ("dirichlet", {"lda": "hsu"}, "one of per_client, prior, per_class, got 'hsu'"),
        ("dirichlet", {"lda": "per_class", "clients": 25}, "clients must be <= 24, got 25"),
        ("shards", {"shards_per_client": 25}, r"shards_per_client must be 1\.\.24 .*got 25"),
        ("shards", {"shards_per_client": 0}, r"shards_per_client must be 1\.\.24 .*got 0"),
        ("by-domain", {}, "training data has no domains; use dirichlet, iid or shards"),
        ("by-domain", {"domain_train": Y}, "test data has no domains"),
        ("by-domain", {"domain_train": Y[1:], "domain_test": Y_TEST}, r"\(240,\), got .*\(239,\)"),
        ("by-domain", {**DOMAINS, "clients": 10}, "multiple of the 3 domains, got 10"),
        ("by-domain", {**DOMAINS, "clients": None}, "multiple of the 3 domains, got None"),
        ("by-domain", {**DOMAINS, "clients_per_domain": 0}, "clients_per_domain must be >= 1"),
        ("by-domain", {**DOMAINS, "clients_per_domain": 5}, "make clients=15, got clients=10"),
        ("by-domain", {**DOMAINS, "clients": 237}, r"domain 1 has \d+ .* must be <= \d+, got 79"),
        ("by-domain", {"domain_train": Y * 2, "domain_test": Y_TEST}, "without gaps"),
        ("by-domain", {"domain_train": Y, "domain_test": Y_TEST + 1}, r"domains \[4\] that no"),
        ("natural", {}, "training data has no client ids"),
        ("natural", {"natural_train": Y, "natural_test": Y_TEST}, "clients=4, got clients=10"),
        (
            "natural",
            {"natural_train": Y, "natural_test": Y_TEST + 1, "clients": 4},
            r"clients \[4\] without training",
        ),
        (
            "natural",
            {"natural_train": Y / 2, "natural_test": Y_TEST},
            "integer or string .*float64",
        ),
    ],
)
def test_impossible_requests_name_the_number_to_change(kind, options, message):
    with pytest.raises(ValueError, match=message):
        make_partition(kind, Y, Y_TEST, **{"clients": 10, "seed": 0, **options})


@pytest.mark.parametrize(
    ("y_train", "message"),
    [
        (np.zeros((3, 2), int), r"y_train must be integer labels \[N\], got int64 \(3, 2\)"),
        (np.zeros(3), "y_train must be integer labels"),
        (np.array([0, -1]), "y_train must be >= 0, got -1"),
        (np.zeros(0, int), "nothing to distribute"),
    ],
)
def test_bad_labels_are_refused(y_train, message):
    with pytest.raises(ValueError, match=message):
        make_partition("iid", y_train, Y_TEST, clients=1, seed=0)


@pytest.mark.parametrize("kind", ["dirichlet", "by-domain"])
def test_save_and_load_round_trip(tmp_path, kind):
    saved = make_partition(
        kind, Y, Y_TEST, clients=8, seed=0, domain_train=Y, domain_test=Y_TEST, alpha=0.5
    )
    path = tmp_path / "partition.npz"
    saved.save(path)
    saved.save(path)  # replacing is fine
    loaded = Partition.load(path)
    assert os.listdir(tmp_path) == ["partition.npz"]
    assert (loaded.sha256, loaded.convention, loaded.domains) == (
        saved.sha256,
        saved.convention,
        saved.domains,
    )
    for got, expected in zip(
        [*loaded.train, *loaded.test], [*saved.train, *saved.test], strict=True
    ):
        np.testing.assert_array_equal(got, expected)
        assert got.dtype == np.int64


@pytest.mark.parametrize("damage", ["truncated", "flipped", "text", "empty", "other npz"])
def test_damaged_files_are_named(tmp_path, damage):
    path = tmp_path / "broken.npz"
    make_partition("iid", Y, Y_TEST, clients=8, seed=0).save(path)
    content = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        at = content.index(b"train_ids.npy") + 60
        path.write_bytes(content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :])
    elif damage == "other npz":
        np.savez(path, x=np.arange(3))
    else:
        path.write_bytes(b"" if damage == "empty" else b"not a partition")
    with pytest.raises(ValueError, match=r"broken\.npz: not a readable partition file"):
        Partition.load(path)


@pytest.mark.parametrize(
    ("name", "array"),
    [("train_ids", np.float64(3.0)), ("train_sizes", np.array(["a"])), ("domains", np.arange(3))],
)
def test_files_with_strange_arrays_are_named(tmp_path, name, array):
    path = tmp_path / "strange.npz"
    make_partition("iid", Y, Y_TEST, clients=8, seed=0).save(path)
    with np.load(path) as file:
        arrays = dict(file) | {name: array}
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=r"strange\.npz: not a readable partition file"):
        Partition.load(path)


@pytest.mark.parametrize("kind", [MemoryError, AttributeError])
def test_what_is_no_damage_passes_through(tmp_path, monkeypatch, kind):
    path = tmp_path / "whole.npz"
    make_partition("iid", Y, Y_TEST, clients=8, seed=0).save(path)

    def fails(*_, **__):
        raise kind("not the file's fault")

    monkeypatch.setattr(np.lib.format, "read_array", fails)
    with pytest.raises(kind, match="not the file's fault"):
        Partition.load(path)


def test_edited_ids_do_not_match_the_stored_hash(tmp_path):
    path = tmp_path / "edited.npz"
    make_partition("iid", Y, Y_TEST, clients=8, seed=0).save(path)
    with np.load(path) as file:
        arrays = dict(file)
    arrays["train_ids"] = arrays["train_ids"][::-1]
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=r"edited\.npz: .* hash"):
        Partition.load(path)


def test_interrupted_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "partition.npz"
    old = make_partition("iid", Y, Y_TEST, clients=8, seed=0)
    old.save(path)

    def full_disk(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", full_disk)
    with pytest.raises(OSError, match="No space left"):
        make_partition("iid", Y, Y_TEST, clients=8, seed=1).save(path)
    assert os.listdir(tmp_path) == ["partition.npz"]
    assert Partition.load(path).sha256 == old.sha256


@pytest.mark.parametrize(
    ("train", "test", "domains", "message"),
    [
        ([[0], []], [[], []], None, r"without training samples: \[1\]"),
        ([[0], [0]], [[], []], None, "train ids .* one client only"),
        ([[0], [1]], [[3, 3], []], None, "test ids .* one client only"),
        ([[0], [-1]], [[], []], None, "must be >= 0"),
        ([[0]], [[], []], None, "same clients .*got 1 and 2"),
        ([], [], None, "at least one"),
        ([[[0]]], [[]], None, r"must be \[N_i\], got \(1, 1\)"),
        ([[0]], [[]], (0, 1), "domains must name 1 clients, got 2"),
    ],
)
def test_partition_refuses_inconsistent_ids(train, test, domains, message):
    arrays = [tuple(np.array(ids, dtype=np.int64) for ids in lists) for lists in (train, test)]
    with pytest.raises(ValueError, match=message):
        Partition(*arrays, "by hand", domains)


def test_partition_does_not_change_with_its_source():
    ids = np.array([0, 1])
    partition = Partition((ids,), (ids,), "by hand")
    ids[0] = 5
    assert partition.train[0].tolist() == partition.test[0].tolist() == [0, 1]


def test_hash_is_stable_and_sees_client_borders():
    def hash_of(*train):
        arrays = tuple(np.array(ids) for ids in train)
        return Partition(arrays, tuple(ids[:0] for ids in arrays), "").sha256

    assert hash_of([0, 1], [2]) != hash_of([0], [1, 2])
    # counts and sizes, then ids, of training and test: little-endian 64-bit
    content = struct.pack("<9q", 2, 2, 1, 0, 1, 2, 2, 0, 0)
    assert hash_of([0, 1], [2]) == hashlib.sha256(content).hexdigest()
