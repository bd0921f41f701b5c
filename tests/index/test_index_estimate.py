"""What an index will cost, said before it is paid."""

import dataclasses

import pytest

from c2v_sim.config import RunConfig
from c2v_sim.data.federation import Federation
from c2v_sim.index.build import obtain_index
from c2v_sim.index.config import IndexConfig
from c2v_sim.index.estimate import IndexCost, index_cost, pair_seconds
from c2v_sim.run.build import build_federation
from c2v_sim.system.settings import Affects, values_affecting

TINY = IndexConfig(epochs=2, hidden=32, batch_size=16, threads=1, max_samples=20)


@pytest.fixture(scope="module")
def federation() -> Federation:
    return build_federation(RunConfig(train_size=240, test_size=60, clients=6, partition="iid"))[0]


@pytest.mark.parametrize("strategy", ["global", "federated"])
def test_it_is_what_the_samples_and_the_pairs_take(federation, tmp_path, strategy):
    settings = dataclasses.replace(TINY, strategy=strategy, local_epochs=1, participation=0.5)
    paces = {values_affecting(settings, Affects.PACE): 0.25}
    cost = index_cost(federation, settings, tmp_path, paces)
    seen = 6 * 20 if strategy == "global" else 3 * 20
    assert cost.samples == 120
    assert cost.train == pytest.approx(2 * seen * 0.25)
    assert cost.average == pytest.approx(120 * 0.25 / 3)
    assert cost.embed > 0
    assert cost.total == cost.embed + cost.train + cost.average


@pytest.mark.parametrize("strategy", ["global", "federated"])
def test_a_pair_is_measured_by_real_steps(strategy):
    assert pair_seconds(dataclasses.replace(TINY, strategy=strategy, patience=1)) > 0


def test_a_cached_index_costs_nothing_and_cached_embeddings_no_embedding(federation, tmp_path):
    first = obtain_index(federation, TINY, data_dir=tmp_path)
    assert index_cost(federation, TINY, tmp_path) is None
    cost = index_cost(federation, dataclasses.replace(TINY, epochs=3), tmp_path)
    assert (cost.embed, cost.samples) == (0.0, 120)
    again = obtain_index(federation, TINY, data_dir=tmp_path)
    assert (first.origin, again.origin) == ("built", "cache")
    assert again.seconds == first.seconds == pytest.approx(sum(first.provenance["stages"].values()))
    assert list(first.provenance["stages"]) == ["embed", "train", "average"]


def test_it_says_what_it_covers():
    cost = IndexCost(12_800, IndexConfig(epochs=5), embed=2.2, train=16.1, average=0.2)
    assert cost.words() == (
        "about 18 s: embed 12,800 samples 2 s, train DSA-IGN for 5 epochs 16 s, average under 1 s"
    )
    settings = IndexConfig(epochs=20, strategy="federated", patience=1)
    cost = IndexCost(100, settings, embed=0.0, train=300.0, average=1.0)
    assert cost.words() == (
        "at most about 5 min: embed 100 samples (cached) 0 s, train DSA-IGN for 2 rounds 5 min, "
        "average 1 s"
    )
    naive = IndexCost(100, IndexConfig(index="feature-average"), embed=3.0, train=0.0, average=0.0)
    assert naive.words() == "about 3 s: embed 100 samples 3 s"
