"""Other people's networks as features and classifier."""

import copy

import pytest
import torch
import torch.nn.functional as F
from other_networks import NETWORKS, LowRank
from torch import nn

from c2v_sim.models import MLP
from c2v_sim.models.split import NoSplit, Split, split, state_dict_of


@pytest.mark.parametrize("name", NETWORKS)
def test_the_classifier_is_found_and_nothing_changes(name):
    make, x, place = NETWORKS[name]
    torch.manual_seed(0)
    model = make()
    parts = split(copy.deepcopy(model), x)
    assert isinstance(parts, Split)
    assert parts.place == place
    with torch.no_grad():
        expected, got = model.eval()(x), parts.eval()(x)
        expected = getattr(expected, "logits", expected)
        assert parts.features(x).shape == (2, parts.classifier.in_features)
    torch.testing.assert_close(got, expected)
    state = state_dict_of(parts, {})
    assert state.keys() == model.state_dict().keys()
    for key, tensor in model.state_dict().items():
        assert torch.equal(state[key], tensor), key


class Head(nn.Module):
    """Two ways to logits; `plain` is not Linear, `scaled` is no linear layer of any z."""

    def __init__(self, way):
        super().__init__()
        self.way, self.body, self.fc = way, nn.Linear(12, 8), nn.Linear(8, 3)
        nn.init.zeros_(self.fc.weight)  # as many heads begin

    def forward(self, x):
        z = self.body(x).relu()
        if self.way == "tuple":
            return self.fc(z), z
        if self.way == "dict":
            return {"logits": self.fc(z), "loss": None}
        if self.way == "scaled":
            return 3 * self.fc(z)
        return {"other": z} if self.way == "nothing" else self.fc(z)


@pytest.mark.parametrize("way", ["tensor", "tuple", "dict"])
def test_logits_are_taken_out_of_what_a_model_returns(way):
    parts = split(Head(way), torch.randn(2, 12))
    assert parts.place == "fc"
    assert parts.features(torch.randn(2, 12)).shape == (2, 8)
    assert not parts.classifier.weight.any()  # the zeros are put back


def test_a_classifier_that_is_no_linear_layer():
    model = nn.Sequential(nn.Linear(12, 8), nn.Tanh(), LowRank(nn.Linear(8, 3), 2))
    assert split(model, torch.randn(2, 12)).place == "2"


def test_a_named_classifier():
    model = nn.Sequential(nn.Linear(12, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 3)))
    assert split(copy.deepcopy(model), torch.randn(2, 12)).place == "1.1"
    parts = split(model, torch.randn(2, 12), "1")
    assert parts.place == "1"
    assert isinstance(parts.classifier, nn.Sequential)


def test_what_has_features_and_classifier_stays():
    model = MLP(3, (12,), 8)
    assert split(model, torch.randn(2, 12)) is model
    assert isinstance(split(model, torch.randn(2, 12), "classifier"), Split)


class Log(MLP):
    """Its forward gives no logits, its features and classifier do."""

    def forward(self, x):
        return F.log_softmax(super().forward(x), dim=1)


def test_features_and_classifier_count_more_than_forward():
    model = Log(3, (12,), 8)
    assert split(model, torch.randn(2, 12)) is model


@pytest.mark.parametrize(
    ("way", "named", "message"),
    [
        ("scaled", None, r"model Head: no part was found .*tried: 'fc'.*Linear parts: body, fc"),
        ("tensor", "body", r"no part was found .*tried: 'body'"),
        ("tensor", "head", "model Head has no part 'head'; its Linear parts are body, fc"),
        ("nothing", None, "a model must return logits: .*; got NoneType"),
    ],
)
def test_refusals_say_what_to_do(way, named, message):
    model = Head(way)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(NoSplit, match=message):
        split(model, torch.randn(2, 12), named)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert model.training


def test_what_is_no_model():
    with pytest.raises(TypeError, match="model Module has no method features"):
        split(nn.Module(), torch.randn(2, 12))
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module"):
        split(len, torch.randn(2, 12))
