"""GLOBAL and FEDERATED training: equal to a slow reference, resumable; they separate domains."""

import dataclasses
import threading

import pytest
import torch
from planted import planted
from safetensors import SafetensorError, safe_open
from slow_index import SlowNetwork, train_federated, train_global

from c2v_sim.index import checkpoint as index_checkpoint
from c2v_sim.index import stacked as index_stacked
from c2v_sim.index import training as index_training
from c2v_sim.index.build import build_index
from c2v_sim.index.config import IndexConfig
from c2v_sim.index.dsa_ign import build_network
from c2v_sim.index.training import Pairs, Training, train_network, uploads
from c2v_sim.system import tensor_file
from c2v_sim.system.errors import ConfigError, Interrupted, TrainingError
from c2v_sim.training.arena import layout_of

TINY = IndexConfig(
    epochs=4,
    local_epochs=2,
    participation=0.5,
    hidden=32,
    batch_size=16,
    upload=9,
    threads=1,
    lanes=1,
)


@pytest.fixture(scope="module")
def data():
    federation, images, labels = planted(clients_per_domain=1, samples=17, classes=5)
    pairs = Pairs(images, labels, federation.dataset.y_train, torch.device("cpu"))
    return federation, pairs


def train(data, config, **options):
    federation, pairs = data
    network, training = train_network(pairs, federation.partition, config, **options)
    return network.state_dict(), training.curve


def same_bits(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("strategy", ["global", "federated"])
def test_equals_the_slow_reference(data, strategy):
    """17 samples per client and batches of 16: the single sample at the end is dropped."""
    config = dataclasses.replace(TINY, strategy=strategy, dropout=0.0, index_lr=3e-4)
    federation, pairs = data
    ours, _ = train(data, config)
    start = build_network("linear", 32, 0.0, seed=0).state_dict()
    slow = {"global": train_global, "federated": train_federated}[strategy](
        SlowNetwork(start, 32),
        pairs.images,
        pairs.labels,
        pairs.y,
        federation.partition.train,
        config,
    )
    slow_state = {n.removeprefix("encoder."): t for n, t in slow.state_dict().items()}
    assert slow_state.keys() == ours.keys()
    for name, value in slow_state.items():
        if name.endswith("in_proj_bias"):
            # A bias of the keys does not change a softmax: its gradient is rounding alone, which
            # Adam blows up to full steps.
            ours[name][32:64], value[32:64] = 0.0, 0.0
        # Adam's first steps divide by tiny gradients, which magnifies rounding.
        torch.testing.assert_close(ours[name], value, atol=2e-5, rtol=1e-3)
        assert (ours[name] - start[name]).abs().max() > 1e-4  # it was trained


def test_lanes_do_not_show_in_the_result(data):
    config = dataclasses.replace(TINY, strategy="federated")
    one, two = (train(data, dataclasses.replace(config, lanes=n)) for n in (1, 2))
    assert same_bits(one[0], two[0])
    assert one[1] == two[1]


def test_each_client_uploads_once_without_repetition(data):
    partition = data[0].partition
    pool = uploads(partition, TINY)
    assert len(pool) == len(set(pool)) == 9 * partition.clients
    assert set(pool[:9]) <= set(partition.train[0])
    everything = uploads(partition, dataclasses.replace(TINY, upload=128))
    assert sorted(everything) == sorted(i for ids in partition.train for i in ids)


@pytest.mark.parametrize("strategy", ["global", "federated"])
def test_an_interrupted_training_goes_on_with_the_same_bits(data, strategy, tmp_path, monkeypatch):
    monkeypatch.setattr(index_checkpoint, "SECONDS_BETWEEN_CHECKPOINTS", -1.0)
    config = dataclasses.replace(TINY, strategy=strategy)
    whole = train(data, config)
    file = tmp_path / "training.safetensors"

    def interrupt(training):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(data, config, checkpoint=file, on_point=interrupt)
    seen = []
    resumed = train(data, config, checkpoint=file, on_point=lambda t: seen.append(len(t.curve)))
    assert seen == list(range(2, config.points + 1))
    assert same_bits(whole[0], resumed[0])
    assert whole[1] == resumed[1]


@pytest.mark.parametrize(("strategy", "steps"), [("global", 5), ("global", 7), ("federated", 9)])
def test_a_wish_to_stop_ends_after_the_step_with_a_checkpoint(
    data, strategy, steps, tmp_path, monkeypatch
):
    """54 uploads in batches of 16 are 4 steps per epoch: 5 and 7 are inside the second."""
    config = dataclasses.replace(TINY, strategy=strategy)
    whole = train(data, config)
    file, stop, taken = tmp_path / "training.safetensors", threading.Event(), []

    def counting(*arguments):
        taken.append(1)
        if len(taken) == steps:
            stop.set()
        return losses(*arguments)

    losses = index_training.losses
    for room in (index_training, index_stacked):  # where GLOBAL and FEDERATED training take them
        monkeypatch.setattr(room, "losses", counting)
    with pytest.raises(Interrupted):
        train(data, config, checkpoint=file, stop=stop)
    assert len(taken) == steps
    taken.clear()
    stop.clear()
    resumed = train(data, config, checkpoint=file)
    if strategy == "global":
        assert len(taken) == 4 * config.epochs - steps  # not one is repeated
    assert same_bits(whole[0], resumed[0])
    assert whole[1] == resumed[1]


def stopped_inside_an_epoch(data, file, monkeypatch, config=TINY):
    stop, losses, taken = threading.Event(), index_training.losses, []

    def counting(*arguments):
        taken.append(1)
        if len(taken) == 6:
            stop.set()
        return losses(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(index_training, "losses", counting)
        with pytest.raises(Interrupted):
            train(data, config, checkpoint=file, stop=stop)
    with safe_open(str(file), framework="pt") as old:
        return {name: old.get_tensor(name) for name in old.keys()}, old.metadata()  # noqa: SIM118


def test_a_checkpoint_of_another_kind_of_device_goes_on_with_a_warning(
    data, tmp_path, monkeypatch, capsys
):
    """A GPU's generator has a state of 16 bytes."""
    file = tmp_path / "training.safetensors"
    tensors, about = stopped_inside_an_epoch(data, file, monkeypatch)
    tensors["random"] = torch.arange(16, dtype=torch.uint8)
    tensor_file.save(file, tensors, about)
    network, curve = train(data, TINY, checkpoint=file)
    assert "written on another kind of device than cpu" in capsys.readouterr().err
    whole, without_stop = train(data, TINY)
    assert len(curve) == len(without_stop)
    assert curve[0] == without_stop[0]
    torch.testing.assert_close(torch.tensor(curve), torch.tensor(without_stop), rtol=0.1, atol=0.1)
    tensor_file.save(file, tensors, about)
    assert same_bits(network, train(data, TINY, checkpoint=file)[0])
    assert not same_bits(network, whole)


def test_a_checkpoint_from_before_rows_were_padded_goes_on(data, tmp_path, monkeypatch):
    file = tmp_path / "training.safetensors"
    config = dataclasses.replace(TINY, hidden=30)
    tensors, about = stopped_inside_an_epoch(data, file, monkeypatch, config)
    layout = layout_of(build_network(config.decoder, config.hidden, config.dropout, config.seed))
    assert layout.parameter_count < layout.trainable
    for name in ("parameters", "moments"):
        parts = [tensors[name][..., slot.offset : slot.end] for slot in layout.parameters]
        tensors[name] = torch.cat(parts, dim=-1)
        assert tensors[name].shape[-1] == layout.parameter_count
    tensor_file.save(file, tensors, about)
    resumed, whole = train(data, config, checkpoint=file), train(data, config)
    assert same_bits(whole[0], resumed[0])
    assert whole[1] == resumed[1]


def test_a_full_disk_does_not_end_the_training(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(index_checkpoint, "SECONDS_BETWEEN_CHECKPOINTS", -1.0)

    def full(*_, **__):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(tensor_file, "save_file", full)
    _, curve = train(data, TINY, checkpoint=tmp_path / "training.safetensors")
    assert len(curve) == TINY.epochs
    assert capsys.readouterr().err.count("No space left on device") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_another_training_is_refused(data, tmp_path):
    file = tmp_path / "training.safetensors"
    train(data, dataclasses.replace(TINY, epochs=1), checkpoint=file, identity="one")
    with pytest.raises(ConfigError, match="seed: 0 there, 1 now"):
        train(data, dataclasses.replace(TINY, seed=1), checkpoint=file, identity="one")
    with pytest.raises(ConfigError, match="data: one there, two now"):
        train(data, TINY, checkpoint=file, identity="two")
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ValueError, match="cannot be read"):
        train(data, TINY, checkpoint=file, identity="one")


def test_the_curve_holds_the_four_losses_and_they_fall(data):
    for strategy in ("global", "federated"):
        config = dataclasses.replace(TINY, strategy=strategy, dropout=0.0)
        curve = train(data, config)[1]
        assert len(curve) == config.points
        assert all(len(point) == 4 for point in curve)
        assert sum(curve[-1]) < sum(curve[0])


def test_training_stops_on_a_plateau(data):
    config = dataclasses.replace(TINY, patience=2, tolerance=10.0, epochs=50)
    assert len(train(data, config)[1]) == 3
    training = Training(torch.zeros(1, 1), torch.zeros(2, 1), [[1, 0, 0, 5.0], [1, 0, 0, 4.0]])
    patient = dataclasses.replace(config, patience=1, tolerance=0.5)
    assert not training.plateaued(patient)
    assert training.plateaued(dataclasses.replace(patient, omit_loss=("div",)))
    assert not training.plateaued(dataclasses.replace(patient, patience=0))


def test_a_diverging_training_is_reported(data):
    with pytest.raises(TrainingError, match=r"epoch 1.*not finite.*lower index_lr"):
        train(data, dataclasses.replace(TINY, index_lr=1e30, epochs=1))


def test_settings_are_checked():
    for settings, message in (
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"strategy": "local"}, "strategy must be one of global, federated; got 'local'"),
        ({"omit_loss": ("sim", "orth", "recon", "div")}, "all four losses are omitted"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\)"),
        ({"index_lr": 0.0}, "index_lr must be a positive number"),
        ({"participation": 0.0}, "participation must be in"),
        ({"clip_weights": "x.pt"}, "go with encoder = clip, not builtin"),
    ):
        with pytest.raises(ConfigError, match=message):
            IndexConfig(**settings)


def test_pairs_are_checked():
    device = torch.device("cpu")
    with pytest.raises(ValueError, match=r"images must be \[N, D\] and labels \[K, D\]"):
        Pairs(torch.zeros(3, 4), torch.zeros(2, 5), torch.zeros(3, dtype=torch.int64), device)
    with pytest.raises(ValueError, match=r"y must be \[3\] classes below 2, got \(3,\), largest 2"):
        Pairs(torch.zeros(3, 4), torch.zeros(2, 4), torch.arange(3), device)


@pytest.mark.slow
def test_planted_domains_are_found_and_without_diversity_they_collapse():
    """The specification's acceptance: 240 steps of batch 128, 256 hidden units, no dropout."""
    federation, images, labels = planted()
    config = IndexConfig(epochs=16, hidden=256, dropout=0.0, threads=1)
    index = build_index(federation, config, embeddings=(images, labels))
    assert len(index.provenance["curve"]) * len(images) // 128 == 240
    assert index.quality["within"] - index.quality["between"] > 0.8
    collapsed = dataclasses.replace(config, omit_loss=("div",))
    index = build_index(federation, collapsed, embeddings=(images, labels))
    assert index.quality["within"] - index.quality["between"] < 0.2
