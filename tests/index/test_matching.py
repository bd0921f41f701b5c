"""A client that was not there: its vector is the one that the index would have given it."""

import pytest
import torch
from federations import image_federation

from c2v_sim.index.build import build_index, index_embeddings
from c2v_sim.index.client_index import ClientIndex
from c2v_sim.index.config import IndexConfig
from c2v_sim.index.matching import MATCHING, vectors_of
from c2v_sim.index.naive import NAIVE
from c2v_sim.index.similarity.clusters import cluster

FEDERATION = image_federation(clients=6, smallest=4)
SETTINGS = {"epochs": 2, "hidden": 8, "threads": 1, "dropout": 0.1, "batch_size": 16}


@pytest.fixture(scope="module")
def embeddings(tmp_path_factory):
    return index_embeddings(FEDERATION, IndexConfig(), tmp_path_factory.mktemp("data"))


def index_by(kind, embeddings):
    return build_index(FEDERATION, IndexConfig(index=kind, **SETTINGS), embeddings=embeddings)


def samples_of(client, embeddings):
    ids = torch.from_numpy(FEDERATION.partition.train[client])
    return embeddings.images[ids], FEDERATION.dataset.y_train[ids]


@pytest.mark.parametrize("kind", MATCHING)
def test_a_known_client_gets_its_own_vector(kind, embeddings, tmp_path):
    index = index_by(kind, embeddings)
    index.save(tmp_path / "index.safetensors")
    index = ClientIndex.load(tmp_path / "index.safetensors", FEDERATION)
    similarity = index.similarity().double()
    clusters = torch.from_numpy(cluster(similarity, 2))
    for client in range(6):
        images, labels = samples_of(client, embeddings)
        counts = torch.bincount(labels, minlength=4)
        facts = index.provenance["settings"]
        found = vectors_of(kind, facts, index.known, images, counts)
        assert set(found) == set(index.parts)
        for part, vector in found.items():
            torch.testing.assert_close(vector, getattr(index, part)[client], rtol=1e-5, atol=1e-6)
        match = index.match(images, labels, clusters=clusters, temperature=0.5)
        torch.testing.assert_close(match.similarity, similarity[client], rtol=0, atol=1e-5)
        wanted = torch.exp(match.similarity / 0.5)
        torch.testing.assert_close(match.weights, wanted / wanted.sum())
        means = [match.similarity[clusters == c].mean() for c in range(2)]
        assert match.cluster == int(means[1] > means[0])


def test_without_classes_the_feature_parts_are_compared(embeddings):
    index = index_by("dsa-ign", embeddings)
    match = index.match(samples_of(2, embeddings)[0])
    wanted = index.similarity("feature")[2].double()
    torch.testing.assert_close(match.similarity, wanted, rtol=0, atol=1e-5)
    assert match.cluster is None


def test_what_cannot_be_matched_is_refused(embeddings):
    images, labels = samples_of(0, embeddings)
    with pytest.raises(ValueError, match="label-histogram needs the classes"):
        index_by("label-histogram", embeddings).match(images)
    for kind in set(NAIVE) - set(MATCHING):
        with pytest.raises(ValueError, match=f"{kind} are made of all clients together"):
            vectors_of(kind, {}, {}, images, None)
    bare = index_by("dsa-ign", embeddings)
    bare.known.clear()
    with pytest.raises(ValueError, match="does not have its network; build it anew"):
        bare.match(images, labels)
