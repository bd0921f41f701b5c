"""Clients that never train: who they are, what they are tested by, and that it stays apart."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from federations import image_federation
from slow_fedavg import normalised

from c2v_sim import RunConfig, Simulator
from c2v_sim.data.federation import Federation
from c2v_sim.index.build import index_embeddings
from c2v_sim.index.config import IndexConfig
from c2v_sim.models import build_model
from c2v_sim.run.build import build_federation
from c2v_sim.system.errors import ConfigError

WHOLE = image_federation(clients=10, smallest=4)
FEDERATION = WHOLE.holding_out(0.3, seed=1)
SETTINGS = {"rounds": 2, "participation": 0.5, "local_epochs": 1, "batch_size": 8, "lr": 0.05}


def trained(tmp_path, **changes):
    config = RunConfig(**SETTINGS | {"data_dir": str(tmp_path)} | changes)
    simulator = Simulator(FEDERATION, config)
    records = simulator.run().records
    simulator.close()
    return simulator, records


@torch.no_grad()
def logits(simulator, cluster, x):
    model = build_model("cnn", classes=4, input_shape=(16, 16, 3), norm="batch", seed=0)
    model.load_state_dict(simulator.global_model(cluster))
    return model.eval()(normalised(x, FEDERATION.dataset.mean, FEDERATION.dataset.std))


def slow_accuracy(simulator, cluster_of):
    """The mean over the held-out clients of the accuracy by row cluster_of(client)."""
    dataset, means = FEDERATION.dataset, []
    for client, ids in enumerate(FEDERATION.held_out.test):
        guesses = logits(simulator, cluster_of(client), dataset.x_test[ids]).argmax(1)
        means.append((guesses == dataset.y_test[ids]).float().mean().item())
    return np.mean(means)


def test_every_client_is_in_one_of_the_two():
    kept, held = FEDERATION.partition, FEDERATION.held_out
    assert (kept.clients, held.clients) == (7, 3)
    for part in ("train", "test"):
        found = [*getattr(kept, part), *getattr(held, part)]
        assert sorted(map(tuple, found)) == sorted(map(tuple, getattr(WHOLE.partition, part)))
    assert kept.sha256 == WHOLE.holding_out(0.3, seed=1).partition.sha256
    assert kept.sha256 != WHOLE.holding_out(0.3, seed=2).partition.sha256
    with pytest.raises(ValueError, match="leaves none of the 10 clients to train"):
        WHOLE.holding_out(0.99, seed=1)


def test_the_global_model(tmp_path):
    simulator, records = trained(tmp_path)
    assert list(records[-1].held_out) == ["global"]
    assert records[-1].held_out["global"] == pytest.approx(slow_accuracy(simulator, lambda i: 0))
    plain = Simulator(Federation(FEDERATION.dataset, FEDERATION.partition), simulator.config)
    assert plain.run().final.held_out is None
    assert torch.equal(plain.server.data, simulator.server.data)
    assert plain.client_accuracy.tolist() == simulator.client_accuracy.tolist()
    assert records[-1].accuracy_global == pytest.approx(records[-1].accuracy_weighted)
    plain.close()


def test_the_model_of_the_matched_cluster(tmp_path):
    changes = {"improve": ("clustering",), "clusters": 3, "index": "centred-average"}
    simulator, records = trained(tmp_path, **changes)
    held = Federation(FEDERATION.dataset, FEDERATION.held_out)
    images = index_embeddings(held, IndexConfig(), tmp_path).images
    assigned, placed = simulator.algorithm.assigned, []
    means = torch.stack([images[torch.from_numpy(i)].mean(0) for i in FEDERATION.partition.train])
    for ids in FEDERATION.held_out.train:
        own = images[torch.from_numpy(ids)].mean(0) - means.mean(0)
        alike = torch.cosine_similarity(own[None], means - means.mean(0)).numpy()
        placed.append(int(np.argmax([alike[assigned == c].mean() for c in range(3)])))
    assert simulator.algorithm.placed == placed
    wanted = slow_accuracy(simulator, lambda client: placed[client])
    assert records[-1].held_out == {"cluster": pytest.approx(wanted)}


def test_ifca_takes_the_model_of_least_loss_and_cfl_none(tmp_path):
    simulator, records = trained(tmp_path, algorithm="ifca", ifca_models=2)
    dataset, placed = FEDERATION.dataset, []
    for ids in FEDERATION.held_out.train:
        x, y = dataset.x_train[ids], dataset.y_train[ids]
        losses = [F.cross_entropy(logits(simulator, c, x), y).item() for c in range(2)]
        placed.append(losses.index(min(losses)))
    assert records[-1].held_out == {
        "cluster": pytest.approx(slow_accuracy(simulator, lambda client: placed[client]))
    }
    assert trained(tmp_path, algorithm="cfl")[1][-1].held_out is None


def test_a_resumed_run_holds_out_the_same(tmp_path):
    config = RunConfig(train_size=300, test_size=100, clients=10, hold_out_clients=0.2, seed=3)
    made, config = build_federation(config)
    assert (config.clients, made.partition.clients, made.held_out.clients) == (10, 8, 2)
    made.partition.save(tmp_path / "partition.npz")
    made.held_out.save(tmp_path / "held_out.npz")
    again, same = build_federation(config, tmp_path / "partition.npz")
    assert same == config
    assert again.partition.sha256 == made.partition.sha256
    assert again.held_out.sha256 == made.held_out.sha256
    few = RunConfig(train_size=300, test_size=100, clients=1, hold_out_clients=0.2)
    with pytest.raises(ConfigError, match=r"hold_out_clients = 0.2 leaves none of the 1 clients"):
        build_federation(few)
