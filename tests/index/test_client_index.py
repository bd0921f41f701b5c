"""The client index: its values, its file, its federation, its quality numbers and pictures."""

import dataclasses
import re

import numpy as np
import pytest
import scipy.stats
import torch
from planted import planted

from c2v_sim import ops
from c2v_sim.data.federation import limited_ids
from c2v_sim.index import plots as index_plots
from c2v_sim.index.build import build_index
from c2v_sim.index.client_index import ClientIndex
from c2v_sim.index.config import IndexConfig
from c2v_sim.index.encoders.embed import given_embeddings
from c2v_sim.index.quality import label_similarity, quality, separation, silhouette, spearman
from c2v_sim.index.training import Pairs, train_network

TINY = IndexConfig(epochs=1, hidden=32, threads=1, seed=3)


@pytest.fixture(scope="module")
def made():
    federation, images, labels = planted(clients_per_domain=2, samples=20, classes=5)
    return federation, images, labels, build_index(federation, TINY, embeddings=(images, labels))


def test_the_vectors_are_means_over_the_clients_samples(made):
    federation, images, labels, index = made
    pairs = Pairs(images, labels, federation.dataset.y_train, torch.device("cpu"))
    network, training = train_network(pairs, federation.partition, TINY)
    for i, ids in enumerate(federation.partition.train):
        u = network.encode(images[ids])[:, 512:].detach()
        torch.testing.assert_close(index.feature[i], u.mean(0), atol=1e-5, rtol=1e-4)
        of_labels = labels[federation.dataset.y_train[ids]].mean(0)
        torch.testing.assert_close(index.label[i], of_labels, atol=1e-6, rtol=1e-5)
    assert index.provenance["curve"] == training.curve
    assert index.sizes.tolist() == [20] * 12
    assert index.domains.tolist() == sorted([*range(6), *range(6)])


def test_same_seed_same_bits(made):
    federation, images, labels, index = made
    again = build_index(federation, TINY, embeddings=(images, labels))
    assert torch.equal(index.feature, again.feature)
    other = build_index(federation, dataclasses.replace(TINY, seed=4), embeddings=(images, labels))
    assert not torch.equal(index.feature, other.feature)


def test_similarity_is_the_mean_of_the_two_cosines_and_what_client_scores_uses(made):
    index = made[3]
    f, g = (torch.nn.functional.normalize(t.double(), dim=1) for t in (index.feature, index.label))
    expected = (f @ f.T + g @ g.T) / 2
    torch.testing.assert_close(index.similarity().double(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        index.only("feature").similarity().double(), f @ f.T, atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(
        index.only("label").similarity().double(), g @ g.T, atol=1e-5, rtol=1e-5
    )
    cohort = torch.tensor([1, 5])
    scores = ops.client_scores(index.feature, index.label, cohort, index.sizes)
    torch.testing.assert_close(scores, index.similarity()[:, cohort].mean(1), atol=1e-5, rtol=1e-5)


def test_naive_indices(made):
    federation, images, labels, _ = made
    y = federation.dataset.y_train
    average, prototypes = (
        build_index(federation, IndexConfig(index=kind), embeddings=(images, labels))
        for kind in ("feature-average", "class-prototypes")
    )
    assert average.parts == prototypes.parts == ("feature",)
    assert prototypes.feature.shape == (12, 5 * 512)
    ids = federation.partition.train[7]
    torch.testing.assert_close(average.feature[7], images[ids].mean(0))
    for c in range(5):
        block = prototypes.feature[7, 512 * c : 512 * (c + 1)]
        own = images[ids][y[ids] == c]
        torch.testing.assert_close(block, own.mean(0) if len(own) else torch.zeros(512))
    unit = torch.nn.functional.normalize(average.feature, dim=1)
    torch.testing.assert_close(average.similarity(), unit @ unit.T, atol=1e-5, rtol=1e-5)


def test_controls(made):
    federation, images, labels, _ = made
    average, centred, histogram, random, other = (
        build_index(federation, IndexConfig(index=kind, seed=seed), embeddings=(images, labels))
        for kind, seed in (
            ("feature-average", 0),
            ("centred-average", 0),
            ("label-histogram", 0),
            ("random", 0),
            ("random", 1),
        )
    )
    expected = average.feature - average.feature.mean(0)
    torch.testing.assert_close(centred.feature, expected, atol=1e-6, rtol=1e-5)
    assert histogram.parts == ("label",)
    counts = federation.label_counts.double()
    shares = counts / counts.sum(1, keepdim=True)
    torch.testing.assert_close(histogram.label.double(), shares, atol=1e-6, rtol=1e-5)
    assert random.feature.shape == (12, 512)
    assert not torch.equal(random.feature, other.feature)
    assert random.similarity().fill_diagonal_(0).abs().max() < 0.25


def test_a_shuffled_index_has_the_same_vectors_elsewhere(made):
    index = made[3]
    moved = index.shuffled(0)
    same_row = torch.cdist(index.feature, moved.feature).argmin(0)  # whose vector each one has
    assert sorted(same_row.tolist()) == list(range(12))
    assert same_row.tolist() != list(range(12))
    assert torch.equal(moved.feature, index.feature[same_row])
    assert torch.equal(moved.label, index.label[same_row])
    assert torch.equal(moved.sizes, index.sizes)
    assert moved.provenance["shuffled"] == 0


def test_max_samples_limits_what_is_embedded_and_used(made):
    federation, images, labels, index = made
    five = dataclasses.replace(TINY, max_samples=5)
    capped = build_index(federation, five, embeddings=(images, labels))
    assert not torch.equal(capped.feature, index.feature)
    assert torch.equal(capped.label, index.label)  # labels cost nothing: all of them count
    assert capped.sizes.tolist() == index.sizes.tolist()
    capped.check(federation)
    # The same by hand: a federation of the samples drawn, and the embeddings of those alone.
    small, kept = federation.limited(5, TINY.seed), limited_ids(federation.partition, 5, TINY.seed)
    assert small.partition.sizes.tolist() == [5] * 12
    assert small.dataset.sha256 != federation.dataset.sha256
    rows = torch.from_numpy(np.concatenate(kept))
    assert torch.equal(small.dataset.x_train, federation.dataset.x_train[rows])
    assert torch.equal(small.dataset.y_train, federation.dataset.y_train[rows])
    assert all(set(k) <= set(ids) for k, ids in zip(kept, federation.partition.train, strict=True))
    alone = build_index(small, TINY, embeddings=(images[rows], labels))
    assert torch.equal(alone.feature, capped.feature)
    given = given_embeddings(small.dataset, images[rows], labels)
    assert torch.equal(build_index(federation, five, embeddings=given).feature, capped.feature)
    loose = dataclasses.replace(TINY, max_samples=20)
    again = build_index(federation, loose, embeddings=(images, labels))
    assert torch.equal(again.feature, index.feature)


def test_a_saved_index_comes_back_whole(made, tmp_path):
    federation, _, _, index = made
    index.save(tmp_path / "index.safetensors")
    again = ClientIndex.load(tmp_path / "index.safetensors", federation)
    for name in ("feature", "label", "sizes", "label_counts", "domains"):
        assert torch.equal(getattr(index, name), getattr(again, name))
    assert again.provenance == index.provenance
    assert again.provenance["encoder"] == "given"
    assert [p.name for p in tmp_path.iterdir()] == ["index.safetensors"]
    index.only("label").save(tmp_path / "label.safetensors")
    assert ClientIndex.load(tmp_path / "label.safetensors").parts == ("label",)


def test_an_index_of_another_federation_is_refused(made, tmp_path):
    index = made[3]
    index.save(tmp_path / "index.safetensors")
    other = planted(clients_per_domain=2, samples=20, classes=5, seed=1)[0]
    with pytest.raises(ValueError, match=r"another federation: data planted \(0000.*allow_other"):
        ClientIndex.load(tmp_path / "index.safetensors", other)
    assert ClientIndex.load(tmp_path / "index.safetensors", other, allow_other=True).clients == 12
    fewer = planted(clients_per_domain=1, samples=40, classes=5)[0]
    with pytest.raises(ValueError, match="of 12 clients, the federation has 6"):
        index.check(fewer, allow_other=True)


def test_a_file_with_a_digit_changed_in_a_hash_is_refused_by_name(made, tmp_path):
    federation, file = made[0], tmp_path / "index.safetensors"
    made[3].save(file)
    digits = federation.partition.sha256.encode()
    changed = digits[:-1] + (b"0" if digits[-1:] != b"0" else b"1")
    file.write_bytes(file.read_bytes().replace(digits, changed))
    with pytest.raises(ValueError, match=f"^{re.escape(str(file))}: the index was made for"):
        ClientIndex.load(file, federation)


def test_a_file_that_is_damaged_or_something_else_is_refused(made, tmp_path):
    file = tmp_path / "index.safetensors"
    made[3].save(file)
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    with pytest.raises(ValueError, match="damaged"):
        ClientIndex.load(file)
    file.write_bytes(b"no")
    with pytest.raises(ValueError, match="cannot be read"):
        ClientIndex.load(file)
    with pytest.raises(ValueError, match="cannot be read"):
        ClientIndex.load(tmp_path / "absent")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)  # safetensors says that there is no such file
    with pytest.raises(ValueError, match=r"loop cannot be read: .*Too many levels"):
        ClientIndex.load(loop)


def test_wrong_shapes_and_parts_are_named(made):
    index = made[3]
    with pytest.raises(ValueError, match=r"label must be \[12, …\], got \(3, 512\)"):
        dataclasses.replace(index, label=index.label[:3])
    with pytest.raises(ValueError, match="must be finite"):
        dataclasses.replace(index, feature=index.feature * torch.nan)
    with pytest.raises(ValueError, match="have no columns"):
        dataclasses.replace(index, feature=index.feature[:, :0], label=index.label[:, :0])
    with pytest.raises(ValueError, match="part must be one of"):
        index.only("feature").similarity("label")


def test_spearman_is_scipys():
    g = np.random.default_rng(0)
    a, b = g.integers(0, 6, 40).astype(float), g.normal(size=40)
    assert spearman(a, b) == pytest.approx(scipy.stats.spearmanr(a, b).statistic)
    assert spearman(np.ones(5), b[:5]) is None


def test_silhouette_by_hand():
    """Two domains on a line: {0, 1} and {4}; a lone client counts 0."""
    x = torch.tensor([0.0, 1.0, 4.0], dtype=torch.float64)
    distances = (x[:, None] - x).abs()
    expected = ((4 - 1) / 4 + (3 - 1) / 3 + 0) / 3
    assert silhouette(distances, torch.tensor([0, 0, 7])) == pytest.approx(expected)
    assert silhouette(distances, torch.zeros(3)) is None


def test_label_similarity_is_one_minus_total_variation():
    counts = torch.tensor([[10, 0, 0], [5, 5, 0], [0, 0, 3]])
    expected = torch.tensor([[1, 0.5, 0], [0.5, 1, 0], [0, 0, 1]], dtype=torch.float64)
    torch.testing.assert_close(label_similarity(counts), expected)


def test_quality_of_a_perfect_index():
    domains = torch.tensor([0, 0, 1, 1])
    feature = torch.tensor([[1.0, 0], [1, 0], [-1, 0], [-1, 0]])
    assert separation(feature, domains) == {"within": 1.0, "between": -1.0, "silhouette": 1.0}
    counts = torch.tensor([[9, 1, 0], [5, 5, 0], [0, 5, 5], [1, 0, 9]])
    numbers = quality(feature, counts.float(), counts, domains, feature)
    assert numbers["label_spearman"] > 0.9
    assert numbers["control_between"] == -1.0
    without = quality(feature, counts.float(), counts, None, feature)
    assert "within" not in without
    assert "label_spearman" in without


def test_pictures(made, tmp_path):
    index = made[3]
    written = index_plots.plot_all(index, tmp_path)
    names = {p.name for p in written}
    assert names == {
        f"{n}.{s}" for n in ("similarity", "domains", "projection") for s in ("png", "svg")
    }
    assert (tmp_path / "similarity.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "domains.svg").read_text()[:600]
    unknown = dataclasses.replace(index, domains=None)
    assert index_plots.groups(unknown)[0].tolist() == index.label_counts.argmax(1).tolist()
    assert index_plots.plot_similarity(unknown, tmp_path / "by-label")[0].exists()
    with pytest.raises(ValueError, match="do not follow domains"):
        index_plots.plot_domains(unknown, tmp_path / "none")


def test_principal_axes_recover_a_plane():
    g = torch.Generator().manual_seed(0)
    plane = torch.randn(30, 2, generator=g, dtype=torch.float64) * 1e-3
    vectors = torch.cat([torch.ones(30, 1), plane @ torch.randn(2, 9, generator=g).double()], 1)
    points, shares = index_plots.principal_axes(vectors)
    assert sum(shares) == pytest.approx(1, abs=1e-4)
    assert points.shape == (30, 2)
    assert index_plots.principal_axes(vectors[:1])[0].shape == (1, 2)
