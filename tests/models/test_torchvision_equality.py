"""ResNet18 and MobileNetV2 against torchvision's, value by value."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torchvision_models import torchvision_models

from c2v_sim.models import build_model

NAMES = {"resnet18-imagenet": "resnet18", "mobilenetv2": "mobilenet_v2"}
pytestmark = pytest.mark.parametrize("name", NAMES)


def theirs(name, classes=50):
    return getattr(torchvision_models(), NAMES[name])(num_classes=classes)


def ours(name, **options):
    return build_model(name, classes=50, input_shape=(64, 64, 3), **{"seed": 0, **options})


def pair(name):
    """Both models in float64 with the same random weights and statistics, without dropout."""
    expected, got = theirs(name).double(), ours(name).double()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for value in expected.state_dict().values():  # scales, shifts and statistics as well
            if value.dim() == 1:
                value.copy_(torch.rand(value.shape, generator=generator) + 0.5)
    got.load_state_dict(expected.state_dict())
    for model in (expected, got):
        for module in model.modules():
            if hasattr(module, "p"):
                module.p = 0.0
    return expected, got


def images(batch=2, size=64):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, 3, size, size, generator=generator, dtype=torch.float64)


def test_the_same_seed_gives_the_same_weights_under_the_same_names(name):
    with torch.random.fork_rng():
        torch.manual_seed(5)
        expected = theirs(name).state_dict()
    got = ours(name, seed=5).state_dict()
    assert list(got) == list(expected)
    assert all(torch.equal(got[key], expected[key]) for key in expected)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("size", [64, 40])
def test_outputs_gradients_and_statistics_agree(name, size, training):
    expected, got = (model.train(training) for model in pair(name))
    x, y = images(size=size), torch.tensor([3, 44])
    outputs = expected(x), got(x)
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-9, atol=1e-9)
    for output in outputs:
        F.cross_entropy(output, y).backward()
    theirs_by_name = dict(expected.named_parameters())
    for key, parameter in got.named_parameters():
        gradient = theirs_by_name[key].grad
        limit = 1e-9 * (1 + gradient.abs().max())
        assert (parameter.grad - gradient).abs().max() <= limit, key
    for key, buffer in got.named_buffers():
        torch.testing.assert_close(buffer, expected.get_buffer(key), msg=key)


def test_dropout_is_before_the_classifier_alone(name):
    model = ours(name)
    rates = [module.p for module in model.modules() if hasattr(module, "p")]
    assert rates == ([0.2] if name == "mobilenetv2" else [])
    if rates:
        z = copy.deepcopy(model).train().features(images().float())
        assert 0.1 < (z == 0).float().mean() < 0.6  # ReLU6 alone leaves few exact zeros in a mean
