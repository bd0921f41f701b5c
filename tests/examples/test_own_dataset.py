"""examples/own_dataset.py: a user's arrays, model and embeddings."""

import sys

import torch
from example_scripts import EXAMPLES, printed

from c2v_sim.index.encoders.embed import given_embeddings
from c2v_sim.index.naive.feature_average import feature_average

sys.path.insert(0, str(EXAMPLES))

from own_dataset import SITES, STATIONS, embeddings, measurements


def test_the_example_prints_what_it_claims():
    within, between, plain, steered = printed("own_dataset.py")
    assert within.startswith("similarity within sites ")
    assert between.startswith("similarity between sites ")
    assert float(within.split()[-1]) - float(between.split()[-1]) > 0.8
    for line, name in ((plain, "plain"), (steered, "with the index")):
        assert line.startswith(f"{name}: best accuracy ")
        assert float(line.split()[-4]) > 0.6  # of four classes


def test_every_station_is_a_client_with_tests_of_its_own():
    federation = measurements()
    partition = federation.partition
    assert partition.clients == STATIONS
    assert [(len(a), len(b)) for a, b in zip(partition.train, partition.test, strict=True)] == [
        (24, 6)
    ] * STATIONS
    assert federation.dataset.name == "stations"


def test_the_embeddings_are_of_the_training_samples_and_know_the_sites():
    federation = measurements()
    given = given_embeddings(federation.dataset, *embeddings(federation))
    assert given.images.shape == (len(federation.dataset.y_train), 512)
    means = torch.nn.functional.normalize(feature_average(given.images, federation.partition))
    site = torch.arange(STATIONS) % SITES
    cosine = means @ means.T
    assert cosine[site[:, None] == site].min() > cosine[site[:, None] != site].max()
