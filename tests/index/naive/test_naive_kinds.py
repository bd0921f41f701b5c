"""The naive indices beyond the specification's, each against its formula said a second time."""

import numpy as np
import pytest
import torch
from planted import planted
from scipy.linalg import subspace_angles

from c2v_sim.data.partition import Partition
from c2v_sim.index.build import build_index
from c2v_sim.index.config import IndexConfig
from c2v_sim.index.naive import NAIVE, PRIVATE
from c2v_sim.index.naive.by_cosines import MOST_CLIENTS, check_pairs, vectors_by_cosines


@pytest.fixture(scope="module")
def made():
    return planted(clients_per_domain=2, samples=12, domains=3, classes=4)


def similarity(made, kind, seed=0):
    federation, images, labels = made
    index = build_index(federation, IndexConfig(index=kind, seed=seed), embeddings=(images, labels))
    return index.similarity().double()


def own(made, client):
    federation, images, _ = made
    ids = federation.partition.train[client]
    return images[ids].double(), federation.dataset.y_train[ids]


@pytest.mark.parametrize("kind", NAIVE)
def test_the_width_is_known_before_the_vectors(made, kind):
    federation, images, _ = made
    budget = {"epsilon": 1.0, "delta": 1e-5} if kind in PRIVATE else {}
    vectors = NAIVE[kind].vectors(
        images, federation.partition, federation.dataset.y_train, 4, 0, **budget
    )
    assert vectors.shape == (6, NAIVE[kind].width(4))
    assert vectors.dtype == torch.float32
    assert vectors.isfinite().all()


def test_hellinger(made):
    shares = made[0].label_counts.double()
    shares /= shares.sum(1, keepdim=True)
    distance = (shares[1].sqrt() - shares[4].sqrt()).square().sum() / 2
    assert similarity(made, "label-hellinger")[1, 4].item() == pytest.approx(1 - distance.item())


def test_principal_angles(made):
    (one, _), (two, _) = own(made, 0), own(made, 3)
    bases = [np.linalg.svd(x.numpy().T, full_matrices=False)[0][:, :5] for x in (one, two)]
    expected = np.mean(np.cos(subspace_angles(*bases)) ** 2)
    assert similarity(made, "principal-angles")[0, 3].item() == pytest.approx(expected, abs=1e-5)


def test_principal_angles_of_clients_with_few_samples(made):
    images = made[1].clone()
    images[3] = images[0]
    few = Partition(tuple(map(np.array, ([0], [3, 1], [2]))), ([], [], []), "few")
    vectors = NAIVE["principal-angles"].vectors(images, few, None, 4, 0).double()
    assert (vectors[0] @ vectors[1]).item() == pytest.approx(0.5**0.5, abs=1e-5)
    expected = (images[0].double() @ images[2].double()).square().item()
    assert (vectors[0] @ vectors[2]).item() == pytest.approx(expected, abs=1e-5)


def test_masked_prototypes_compare_common_classes_alone(made):
    _, images, _ = made
    held = Partition(tuple(map(np.array, ([0, 1], [2, 3], [4]))), ([], [], []), "by hand")
    y = torch.tensor([0, 1, 1, 2, 3])
    cosines = NAIVE["masked-prototypes"].vectors(images, held, y, 4, 0).double()
    cosines = cosines @ cosines.T
    expected = (images[1].double() @ images[2].double()).item()
    assert cosines[0, 1].item() == pytest.approx(expected, abs=1e-5)
    assert cosines[0, 2].item() == pytest.approx(0.0, abs=1e-5)
    assert cosines.diag().tolist() == pytest.approx([1.0] * 3, abs=1e-5)


def test_mean_and_covariance_weigh_alike(made):
    federation, images, _ = made
    vectors = NAIVE["mean-covariance"].vectors(images, federation.partition, None, 4, 0).double()
    mean, spread = vectors.split([512, 528], dim=1)
    assert mean.norm(dim=1).mean().item() == pytest.approx(spread.norm(dim=1).mean().item())
    averages = torch.stack([own(made, i)[0].mean(0) for i in range(6)])
    torch.testing.assert_close(mean, averages - averages.mean(0), atol=1e-6, rtol=1e-5)
    drawn = np.random.default_rng([0, 8, 1]).standard_normal((512, 32))
    directions = np.linalg.qr(drawn)[0]
    matrices = [
        np.cov(own(made, i)[0].numpy() @ directions, rowvar=False, bias=True) for i in (0, 5)
    ]
    between = np.linalg.norm(matrices[0] - matrices[1])
    c = (spread[0] - spread[5]).norm().item() / between
    other = [np.cov(own(made, i)[0].numpy() @ directions, rowvar=False, bias=True) for i in (1, 2)]
    expected = c * np.linalg.norm(other[0] - other[1])
    assert (spread[1] - spread[2]).norm().item() == pytest.approx(expected, rel=1e-4)


def test_classifier_updates_are_those_of_torchs_sgd(made):
    federation, images, _ = made
    y = federation.dataset.y_train
    vectors = NAIVE["classifier-update"].vectors(images, federation.partition, y, 4, 0)
    x, truth = own(made, 2)
    layer = torch.nn.Linear(512, 4).double()
    torch.nn.init.zeros_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    sgd = torch.optim.SGD(layer.parameters(), lr=1.0)
    for _ in range(10):
        sgd.zero_grad()
        torch.nn.functional.cross_entropy(layer(x), truth).backward()
        sgd.step()
    expected = torch.cat([layer.weight.T, layer.bias[None]]).flatten().float()
    torch.testing.assert_close(vectors[2], expected.detach(), atol=1e-6, rtol=1e-5)
    sketch = NAIVE["sketched-update"].vectors(images, federation.partition, y, 4, 3)
    drawn = np.random.default_rng([3, 9]).standard_normal((4 * 513, 64)) / 8
    torch.testing.assert_close(
        sketch, (vectors.double() @ torch.from_numpy(drawn)).float(), atol=1e-5, rtol=1e-4
    )


def test_vectors_by_cosines():
    g = torch.Generator().manual_seed(0)
    unit = torch.nn.functional.normalize(torch.randn(7, 5, generator=g).double(), dim=1)
    vectors = vectors_by_cosines(unit @ unit.T)
    assert vectors.shape == (7, 512)
    torch.testing.assert_close((vectors @ vectors.T).double(), unit @ unit.T, atol=1e-5, rtol=1e-5)
    check_pairs(MOST_CLIENTS, "principal-angles")
    with pytest.raises(ValueError, match="index = principal-angles compares all pairs of clients"):
        check_pairs(MOST_CLIENTS + 1, "principal-angles")
