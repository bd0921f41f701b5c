import pytest
import torch
from federations import image_federation
from torch import nn

from c2v_sim import RunConfig, Simulator
from c2v_sim.models.dropout import Dropout, use_own_generators


def test_mean_scale_and_eval():
    layer, x = Dropout(0.25), torch.ones(10_000)
    layer.generator = torch.Generator().manual_seed(0)
    y = layer(x)
    assert y.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert y.mean().item() == pytest.approx(1.0, abs=0.02)
    assert torch.equal(layer.eval()(x), x)
    with pytest.raises(ValueError, match=r"p must be in \[0, 1\)"):
        Dropout(1.0)


def test_nested_dropouts_are_replaced():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(0.5), nn.ReLU()))
    found = use_own_generators(model)
    assert [type(m) for m in found] == [Dropout]
    assert model[1][0] is found[0]


class WithDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.classifier = nn.Linear(768, 4)

    def features(self, x):
        return self.drop(x.flatten(1))


def test_a_model_with_dropout_gives_the_same_bits_for_any_number_of_lanes():
    torch.manual_seed(1)
    model, federation = WithDropout(), image_federation(clients=8)
    rows = []
    for lanes in (1, 4):
        config = RunConfig(rounds=2, participation=0.5, batch_size=8, lr=0.01, lanes=lanes)
        simulator = Simulator(federation, config, model=model)
        simulator.run()
        simulator.close()
        rows.append(simulator.server.data.clone())
    assert torch.equal(*rows)
    assert type(model.drop) is nn.Dropout  # the user's module is left as it was
