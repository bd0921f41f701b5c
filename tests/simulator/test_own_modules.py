"""Networks that were written without a thought of this simulator, trained by it."""

import copy
import dataclasses
import functools

import pytest
import slow_fedavg
import torch
import torch.nn.functional as F
from federations import bits, image_federation, made_up_index, simulator_with, text_federation
from other_networks import NETWORKS, LowRank
from torch import nn

from c2v_sim import Federation, RunConfig, Simulator
from c2v_sim.algorithms import ALGORITHMS
from c2v_sim.models import build_model
from c2v_sim.system.machine import intra_op_threads

FEDERATION = image_federation(clients=6, smallest=4)
# The same for plain torch, whose batches then are contiguous [B, C, H, W].
IMAGES = FEDERATION.dataset.x_train.permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)
CONTIGUOUS = Federation(
    dataclasses.replace(FEDERATION.dataset, x_train=IMAGES), FEDERATION.partition
)
CONFIG = RunConfig(rounds=2, participation=0.5, local_epochs=1, batch_size=8, lr=0.05, seed=3)


def trained(federation, config, **parts):
    """(simulator, its global model) after all rounds."""
    simulator = simulator_with(federation, config, **parts)
    simulator.run()
    simulator.close()
    return simulator, simulator.global_model()


def perceptron():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(768, 200), nn.ReLU(), nn.Dropout(0.0), nn.Linear(200, 4)
    )


def test_a_sequential_trains_stacked_to_the_bits_of_the_built_in_mlp():
    config = dataclasses.replace(CONFIG, participation=1.0, model="mlp", momentum=0.9)
    model = perceptron()
    start = build_model("mlp", classes=4, input_shape=(16, 16, 3), seed=CONFIG.seed).state_dict()
    model.load_state_dict(dict(zip(model.state_dict(), start.values(), strict=True)))
    ours, wanted = trained(FEDERATION, config)
    own, got = trained(FEDERATION, config, model=model)
    assert str(own.path) == str(ours.path)
    assert "stacked, many clients in one computation: the model is nothing but 2" in str(own.path)
    assert list(got) == ["1.weight", "1.bias", "4.weight", "4.bias"]
    for theirs, mine in zip(got.values(), wanted.values(), strict=True):
        assert torch.equal(theirs, mine)
    perceptron().load_state_dict(got)  # it is the state dict of the user's own class


class Backwards(nn.Module):
    """The layers in the wrong order, one without a bias."""

    def __init__(self):
        super().__init__()
        self.out, self.inner = nn.Linear(9, 4), nn.Linear(768, 9, bias=False)

    def forward(self, x):
        return self.out(F.relu(self.inner(x.view(x.size(0), -1))))


def test_a_chain_in_any_form_equals_plain_torch():
    torch.manual_seed(0)
    model, config = Backwards(), dataclasses.replace(CONFIG, participation=1.0, momentum=0.5)
    simulator, got = trained(FEDERATION, config, model=model)
    assert simulator.path.stacked
    assert simulator.model.contiguous
    with intra_op_threads(1):
        wanted = slow_fedavg.run(model, CONTIGUOUS, config).state_dict()
    for name, tensor in wanted.items():
        torch.testing.assert_close(got[name], tensor, rtol=1e-5, atol=5e-6, msg=name)


class Viewing(nn.Module):
    """Its view takes no channels_last tensors, which images here are."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 5, 3), nn.Linear(64, 4)

    def forward(self, x):
        return self.fc(F.relu(self.conv(x)).view(x.size(0), -1))


def test_a_model_that_views_its_tensors():
    torch.manual_seed(0)
    model = Viewing()
    _, got = trained(FEDERATION, CONFIG, model=model)
    with intra_op_threads(1):
        wanted = slow_fedavg.run(model, CONTIGUOUS, CONFIG).state_dict()
    for name, tensor in wanted.items():
        torch.testing.assert_close(got[name], tensor, rtol=1e-4, atol=1e-5, msg=name)


class Net(nn.Module):
    """As anybody would write it."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 5, 2), nn.BatchNorm2d(6)
        self.fc = nn.Linear(6, 4)

    def hidden(self, x):
        return F.relu(self.norm(self.conv(x))).mean(dim=(2, 3))

    def forward(self, x):
        return self.fc(self.hidden(x))


class InParts(Net):
    """The same with the two parts that are asked of a model."""

    @property
    def classifier(self):
        return self.fc

    def features(self, x):
        return self.hidden(x)


@pytest.mark.parametrize("improve", [(), ("local",)])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_found_classifier_trains_as_a_declared_one(algorithm, improve):
    config = dataclasses.replace(CONFIG, algorithm=algorithm, improve=improve, lanes=1)
    torch.manual_seed(0)
    net, in_parts = Net(), InParts()
    in_parts.load_state_dict(net.state_dict())
    declared, _ = trained(FEDERATION, config, model=in_parts)
    found, got = trained(FEDERATION, config, model=net)
    states = found.state().values(), declared.state().values()
    assert all(torch.equal(one, other) for one, other in zip(*states, strict=True))
    name = "base.conv.weight" if algorithm == "moon" else "conv.weight"
    same = torch.equal(got[name], net.state_dict()["conv.weight"])
    # Of IFCA's models nobody may have chosen the first, and FedProto's stay with the clients.
    assert not same or algorithm in ("ifca", "fedproto")
    if algorithm != "moon":  # which has a head and a classifier of its own
        assert set(net.state_dict()) == {k for k in got if not k.startswith("c2v_")}


def test_the_classifier_can_be_named():
    config = dataclasses.replace(CONFIG, rounds=1, lanes=1)
    simulator, _ = trained(FEDERATION, config, model=perceptron(), classifier="4")
    assert simulator.model.place == "4"
    with pytest.raises(ValueError, match=r"has no part 'fc'; its Linear parts are 1, 4"):
        Simulator(FEDERATION, config, model=perceptron(), classifier="fc")
    with pytest.raises(ValueError, match="classifier names a part of your own model"):
        Simulator(FEDERATION, config, classifier="fc")


def test_torchvision_with_case_study_iii():
    model = NETWORKS["mobilenet_v2"][0]()
    model.classifier[1] = nn.Linear(1280, 4)
    config = dataclasses.replace(CONFIG, rounds=1, lanes=1, improve=("local",))
    simulator, got = trained(FEDERATION, config, model=model, index=made_up_index(FEDERATION))
    model.load_state_dict({k: v for k, v in got.items() if not k.startswith("c2v_")})
    assert "its part whole.features.0.0 is a Conv2d" not in str(simulator.path)
    assert "more than SGD on cross entropy" in str(simulator.path)


def adapted():
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Flatten(), LowRank(nn.Linear(768, 30)), nn.ReLU(), LowRank(nn.Linear(30, 4))
    )


def test_only_what_is_trained_has_rows_and_the_rest_is_shared():
    model = adapted()
    simulator, got = trained(FEDERATION, dataclasses.replace(CONFIG, lanes=3), model=model)
    trained_ones = [p.numel() for p in model.parameters() if p.requires_grad]
    assert simulator.layout.parameter_count == sum(trained_ones)
    assert simulator.layout.buffer_count == 0
    shared = simulator.model.whole[1].linear.weight
    assert all(
        lane.client.module.whole[1].linear.weight is shared for lane in simulator.lanes._lanes
    )
    assert got.keys() == model.state_dict().keys()
    for name, start in model.state_dict().items():
        frozen = not model.get_parameter(name).requires_grad
        assert torch.equal(got[name], start) == frozen, name
    with intra_op_threads(1):
        wanted = slow_fedavg.run(model, FEDERATION, CONFIG).state_dict()
    for name, tensor in wanted.items():
        torch.testing.assert_close(got[name], tensor, rtol=1e-4, atol=1e-5, msg=name)


class Random(nn.Module):
    """Frozen convolutions, statistics, a mask, and a dropout that is a mere call."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 5, 2).requires_grad_(False)
        self.norm, self.fc = nn.BatchNorm2d(6), nn.Linear(6, 4)
        self.register_buffer("mask", torch.zeros(6), persistent=False)

    def forward(self, x):
        x = F.dropout(F.relu(self.norm(self.conv(x))), 0.3, self.training)
        return {"logits": self.fc(x.mean(dim=(2, 3)) + self.mask)}


@pytest.mark.parametrize("algorithm", ["fedavg", "moon", "feddyn"])
def test_same_bits_for_any_number_of_lanes_and_after_a_resume(algorithm):
    torch.manual_seed(0)
    model = Random()
    config = dataclasses.replace(CONFIG, rounds=3, algorithm=algorithm, lanes=1)
    one, _ = trained(FEDERATION, config, model=model)
    three, _ = trained(FEDERATION, dataclasses.replace(config, lanes=3), model=model)
    assert bits(one.state()) == bits(three.state())
    first = Simulator(FEDERATION, dataclasses.replace(config, rounds=2), model=model)
    first.run()
    kept = {name: tensor.clone() for name, tensor in first.state().items()}
    first.close()
    resumed = Simulator(FEDERATION, config, model=model)
    resumed.load_state(2, kept)
    resumed.run()
    resumed.close()
    assert bits(resumed.state()) == bits(one.state())


@pytest.mark.parametrize("name", ["bert", "llama, whose logits are one position of many"])
def test_text_classifiers_of_transformers(name):
    torch.manual_seed(0)
    model, ends = NETWORKS[name][0](), []
    for lanes in (1, 3):
        config = dataclasses.replace(CONFIG, lanes=lanes, algorithm="fedlc")
        ends.append(trained(text_federation(), config, model=model)[1])
    assert ends[0].keys() == model.state_dict().keys()
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])
    model.load_state_dict(ends[0])


def test_low_rank_adapters_of_peft():
    model = NETWORKS["bert"][0]()
    peft = pytest.importorskip("peft")
    adapters = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    model = peft.get_peft_model(model, adapters)
    for algorithm in ("fedavg", "moon"):  # the second looks at other models without dropout
        config = dataclasses.replace(CONFIG, algorithm=algorithm)
        simulator, got = trained(text_federation(), config, model=model)
        if algorithm == "fedavg":
            assert simulator.layout.parameter_count == model.get_nb_trainable_parameters()[0]
            model.load_state_dict(got)


def test_an_optimiser_of_torch():
    config = dataclasses.replace(CONFIG, momentum=0.9, weight_decay=0.01, algorithm="fedprox")
    torch.manual_seed(0)
    model = Net()
    _, ours = trained(FEDERATION, config, model=model)
    simulator, theirs = trained(FEDERATION, config, model=model, optimizer=torch.optim.SGD)
    assert "the optimiser is SGD, not the fused SGD, which is faster" in str(simulator.path)
    for name in ours:
        torch.testing.assert_close(theirs[name], ours[name], rtol=1e-5, atol=1e-6, msg=name)


def test_an_optimiser_with_settings_of_its_own_for_any_number_of_lanes():
    make = functools.partial(torch.optim.AdamW, lr=0.01)
    rows = []
    for lanes in (1, 3):
        config = dataclasses.replace(CONFIG, lanes=lanes)
        simulator, _ = trained(FEDERATION, config, model=perceptron_of(1), optimizer=make)
        assert "the optimiser is AdamW" in str(simulator.path)
        rows.append(simulator.server.data)
    assert torch.equal(*rows)


def perceptron_of(seed):
    torch.manual_seed(seed)
    return perceptron()


def test_the_users_model_stays_as_it_was():
    model = Random().train()
    before = copy.deepcopy(model.state_dict())
    Simulator(FEDERATION, CONFIG, model=model).close()
    assert model.training
    assert isinstance(model.fc, nn.Linear)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_a_readers_own_features():
    x = torch.randn(60, 20, generator=torch.Generator().manual_seed(0))
    federation = Federation.from_arrays(x, (x[:, 0] > 0).long(), torch.arange(60) % 6)
    config = dataclasses.replace(CONFIG, participation=1.0, rounds=10, lr=0.5)
    simulator = Simulator(federation, config, model=nn.Linear(20, 2))
    assert simulator.path.stacked
    assert simulator.run().best.accuracy > 0.7
    simulator.close()
    nn.Linear(20, 2).load_state_dict(simulator.global_model())
