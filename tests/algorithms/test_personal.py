"""Personal models, against the slow implementation; which model was tested is said."""

import numpy as np
import pytest
import slow_personal
import torch
from federations import made_up_index, simulator_with
from slow_fedavg import normalised
from test_algorithms import FEDERATION, SETTINGS, close, model_for, tensors_of

from c2v_sim import Algorithm, RunConfig, Simulator
from c2v_sim.data.federation import Federation
from c2v_sim.index.build import build_index
from c2v_sim.index.config import IndexConfig
from c2v_sim.system.machine import intra_op_threads

INDEX = made_up_index(FEDERATION)
SLOW = {
    "fedrep": slow_personal.fedrep,
    "ditto": slow_personal.ditto,
    "pfedme": slow_personal.pfedme,
    "fedproto": slow_personal.fedproto,
    "fine-tuning": slow_personal.fine_tuning,
}
OWN = {"fedrep_head": 0.6, "ditto_lambda": 0.7, "tuning_epochs": 2, "lr": 0.03}
OWN |= {"pfedme_lambda": 4.0, "pfedme_steps": 3, "pfedme_eta": 0.1, "pfedme_beta": 0.7}
OWN |= {"fedproto_lambda": 20.0}


def run(**changes):
    config = RunConfig(**SETTINGS | OWN | changes)
    simulator = simulator_with(FEDERATION, config, INDEX, model=model_for(changes))
    return simulator, list(simulator.rounds())


def model_of(simulator, client):
    """The tensors of the client's model, as an evaluation makes it."""
    row = simulator.server.data[0].clone()
    simulator.algorithm.personalise(client, row)
    return [slot.view(row) for slot in simulator.layout.parameters]


@torch.no_grad()
def accuracies(federation, partition, models):
    dataset, out = federation.dataset, []
    for model, ids in zip(models, partition.test, strict=True):
        x = normalised(dataset.x_test[ids], dataset.mean, dataset.std)
        right = model.eval()(x).argmax(1) == dataset.y_test[ids]
        out.append(right.float().mean().item())
    return out


def check(simulator, records, shared, own):
    for (name, tensor), wanted in zip(
        simulator.global_model().items(), tensors_of(shared), strict=True
    ):
        close(tensor, wanted, name)
    partition = FEDERATION.partition
    after = accuracies(FEDERATION, partition, own)
    before = accuracies(FEDERATION, partition, [shared] * 6)
    assert simulator.client_accuracy.tolist() == pytest.approx(after)
    last = records[-1]
    assert last.tested == "personal"
    assert last.accuracy == pytest.approx(np.mean(after))
    if simulator.algorithm.shares_model:
        assert simulator.shared_accuracy.tolist() == pytest.approx(before)
        assert last.accuracy_shared == pytest.approx(np.mean(before))
    else:
        assert simulator.shared_accuracy is last.accuracy_shared is None


@pytest.mark.parametrize("algorithm", SLOW)
def test_equals_the_slow_implementation(algorithm):
    changes = {"algorithm": algorithm}
    simulator, records = run(**changes)
    with intra_op_threads(1):
        shared, own = SLOW[algorithm](FEDERATION, simulator.config, model_for(changes))
    check(simulator, records, shared, own)
    if algorithm != "fine-tuning":  # whose models are made on the lanes
        for client, wanted in enumerate(own):
            for got, tensor in zip(model_of(simulator, client), wanted.parameters(), strict=True):
                close(got, tensor, f"client {client}")
    differ = [max((a - b).abs().max() for a, b in slow_pairs(m, shared)) for m in own]
    assert max(differ) > 1e-3
    simulator.close()


def slow_pairs(one, other):
    return zip(one.parameters(), other.parameters(), strict=True)


@pytest.mark.parametrize("part", ["both", "feature"])
def test_classifiers_are_mixed_by_the_index(part):
    changes = {"improve": ("personalization",), "index_part": part, "personal_temperature": 0.3}
    simulator, records = run(**changes)
    A = (INDEX if part == "both" else INDEX.only("feature")).similarity().double().numpy()
    with intra_op_threads(1):
        parts = (FEDERATION, simulator.config, model_for(changes), A)
        shared, own = slow_personal.mixture(*parts)
    check(simulator, records, shared, own)
    for client, wanted in enumerate(own):
        for got, tensor in zip(model_of(simulator, client), wanted.parameters(), strict=True):
            close(got, tensor, f"client {client}")
    assert max((a - b).abs().max() for a, b in slow_pairs(own[0], own[5])) > 1e-3
    simulator.close()


def test_training_is_that_of_the_algorithm_to_the_bit():
    for algorithm in ("feddyn", "moon"):
        plain, mixed = (
            run(algorithm=algorithm, improve=improve, rounds=2)[0]
            for improve in ((), ("personalization",))
        )
        assert torch.equal(plain.server.data, mixed.server.data)
        assert mixed.algorithm.name == algorithm


def test_clusters_with_mixed_classifiers():
    simulator, records = run(improve=("clustering", "personalization"), clusters=2, rounds=2)
    clusters, changes = simulator.algorithm.inner, {}
    plain, _ = run(improve=("clustering",), clusters=2, rounds=2)
    assert torch.equal(simulator.server.data, plain.server.data)
    assert records[-1].accuracy_shared == pytest.approx(plain.evaluate().mean)
    table, known = simulator.algorithm.table, simulator.algorithm.known.tolist()
    changes = dict(zip(known, table, strict=True))
    for client in range(6):
        row = clusters.model_of(client).data[0].clone()
        like = INDEX.similarity()[client].double().numpy()
        sizes = FEDERATION.partition.sizes
        a = {j: sizes[j] * np.exp(like[j] / 0.1) for j in changes}
        wanted = [slot.view(row).flatten() for slot in simulator.algorithm.slots]
        mixed = sum(float(a[j]) * changes[j].double() for j in a) / sum(a.values())
        got = model_of(simulator, client)[-len(wanted) :]
        close(torch.cat([g.flatten() for g in got]), torch.cat(wanted) + mixed.float(), client)


def test_a_client_that_never_trains_is_given_a_mixture(tmp_path):
    federation = FEDERATION.holding_out(0.34, seed=0)
    facts = {"improve": ("personalization",), "index": "label-histogram"}
    config = RunConfig(**SETTINGS | OWN | facts | {"data_dir": str(tmp_path)})
    index = build_index(federation, IndexConfig(index="label-histogram"))
    simulator = Simulator(federation, config, model=model_for({}), index=index)
    held = list(simulator.rounds())[-1].held_out
    simulator.close()
    counts = Federation(federation.dataset, federation.held_out).label_counts.double()
    new = torch.nn.functional.normalize(counts, dim=1)
    old = torch.nn.functional.normalize(federation.label_counts.double(), dim=1)
    with intra_op_threads(1):
        parts = (federation, config, model_for({}), (new @ old.T).numpy())
        shared, own = slow_personal.mixture(*parts)
    models = {"global": [shared] * 2, "personal": own}
    for kind, given in models.items():
        wanted = np.mean(accuracies(federation, federation.held_out, given))
        assert held[kind] == pytest.approx(wanted), kind


class Whole(Algorithm):
    name = "whole"

    def local_loss(self, client, x, y):
        return super().local_loss(client, x, y)


@pytest.mark.parametrize("algorithm", ["fedrep", "fedproto"])
def test_features_are_needed(algorithm):
    with pytest.raises(ValueError, match=f"{algorithm} needs a model with features to share"):
        Simulator(FEDERATION, RunConfig(algorithm=algorithm, model="linear"))


def test_prototypes_leave_the_global_model_alone():
    federation = FEDERATION.holding_out(0.34, seed=0)
    config = RunConfig(**SETTINGS | OWN | {"algorithm": "fedproto", "rounds": 1})
    simulator = Simulator(federation, config, model=model_for({}))
    before = simulator.server.data.clone()
    record = next(simulator.rounds())
    assert torch.equal(simulator.server.data, before)
    assert not record.held_out  # no model is there for a client that never trains
    simulator.close()


def test_a_local_loss_of_ones_own_is_refused():
    config = RunConfig(**SETTINGS | {"improve": ("personalization",)})
    with pytest.raises(ValueError, match="whole has a `local_loss` of its own"):
        Simulator(FEDERATION, config, algorithm=Whole())
