"""Models and data that do not fit together are refused in words, before anything is trained."""

import numpy as np
import pytest
import torch
from torch import nn

from c2v_sim import Federation, RunConfig, Simulator

OWNERS = np.arange(60) % 6
Y = np.arange(60) % 3


def features(width=20):
    return np.random.default_rng(0).normal(size=(60, width)).astype(np.float32)


def images(*shape, dtype=np.uint8):
    return np.random.default_rng(0).integers(0, 255, (60, *shape)).astype(dtype)


class Net(nn.Module):
    def __init__(self, first, outputs):
        super().__init__()
        self.first, self.classifier = first, nn.Linear(8, outputs)

    def features(self, x):
        return self.first(x).flatten(1)[:, :8]


def refused(x, own, **settings):
    config = RunConfig(rounds=1, batch_size=8, lanes=1, **settings)
    with pytest.raises(ValueError, match=r"reach a model|must give") as error:
        Simulator(Federation.from_arrays(x, Y, OWNERS), config, model=own)
    return str(error.value)


@pytest.mark.parametrize("outputs", [1, 2, 5])
def test_outputs_that_are_not_the_number_of_classes(outputs):
    message = refused(features(), Net(nn.Linear(20, 8), outputs))
    assert "model Net must give [B, 3], a number for each class of user" in message
    assert f"got [B, {outputs}]" in message
    assert "give its classifier 3 outputs, or name all classes with class_names" in message


def test_more_outputs_are_right_where_the_classes_have_names():
    names = [f"class {c}" for c in range(5)]
    federation = Federation.from_arrays(features(), Y, OWNERS, class_names=names)
    config = RunConfig(rounds=1, batch_size=8, lanes=1)
    simulator = Simulator(federation, config, model=Net(nn.Linear(20, 8), 5))
    assert len(simulator.run().records) == 1
    simulator.close()


def test_the_wrong_input_width():
    message = refused(features(12), Net(nn.Linear(20, 8), 3))
    assert "model Net cannot take an input of [1, 12]: mat1 and mat2 shapes" in message
    assert "Features [N, 12] reach a model as floats of the same value" in message
    assert "change the model's first layer, or the shape of the data" in message


def test_a_model_for_another_number_of_channels():
    message = refused(images(16, 16, 3), Net(nn.Conv2d(1, 8, 3), 3))
    assert "cannot take an input of [1, 3, 16, 16]" in message
    assert "Images uint8 [N, H, W, C] reach a model as float32 [B, C, H, W]" in message


def test_channels_first_and_last_mixed_up():
    with pytest.raises(ValueError, match=r"looks like \[N, C, H, W\]; give layout="):
        Federation.from_arrays(images(3, 16, 16), Y, OWNERS)
    told = "images must be uint8 [N, H, W, C]"
    for shape in ((16, 16, 3), (3, 16, 16)):
        x = images(*shape, dtype=np.float32)
        assert told in refused(x, None, model="cnn")
    assert told in refused(images(16, 16, 3, dtype=np.float32), Net(nn.Conv2d(3, 8, 3), 3))


def test_the_check_leaves_a_model_as_it_was():
    model = Net(nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8)), 3).train()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    federation = Federation.from_arrays(features(), Y, OWNERS)
    Simulator(federation, RunConfig(rounds=1, lanes=1), model=model).close()
    assert model.training
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_improving_by_features_points_to_an_index_of_ones_own():
    federation = Federation.from_arrays(features(), Y, OWNERS)
    config = RunConfig(model="linear", rounds=1, lanes=1, improve=("sampling",))
    simulator = Simulator(federation, config)
    with pytest.raises(ValueError, match="improve = sampling needs a client index") as error:
        simulator.run()
    simulator.close()
    assert "Simulator(…, index=build_index(federation, embeddings=(" in str(error.value)
    assert "embed_dataset" not in str(error.value)
