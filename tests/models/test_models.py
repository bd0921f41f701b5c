"""Models: sizes, composition, seeding, and ResNets against a functional re-implementation."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from c2v_sim.models import MODELS, NORMED_MODELS, build_model, check_model
from c2v_sim.system.seeding import seeded_construction

SHAPE = (32, 32, 3)
SHAPES = {"lstm": (20,)}  # of a sample, where it is not an image


def build(name, **options):
    shape = SHAPES.get(name, SHAPE)
    return build_model(name, **{"classes": 10, "input_shape": shape, "seed": 0, **options})


def samples(name, batch=3, seed=1):
    if name != "lstm":
        return images(batch, seed=seed)
    return torch.randint(80, (batch, 20), generator=torch.Generator().manual_seed(seed))


def images(batch=3, shape=SHAPE, seed=1):
    height, width, channels = shape
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, channels, height, width, generator=generator)


TABLE = {  # name → parameters for 10 classes, d
    "cnn": (878_538, 512),
    "resnet8": (78_042, 64),
    "resnet18": (11_173_962, 512),
    "mlp": (3072 * 200 + 200 + 200 * 10 + 10, 200),
    "linear": (3072 * 10 + 10, 3072),
    "lstm": (819_920 - 70 * 257, 256),
    "resnet18-imagenet": (11_202_162 - 40 * 513, 512),
    "mobilenetv2": (2_287_922 - 40 * 1281, 1280),
    "cct": (3_760_139, 256),
}


@pytest.mark.parametrize(("name", "parameters", "d"), [(k, *v) for k, v in TABLE.items()])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_parameters_shapes_and_composition(name, parameters, d, norm):
    model = build(name, norm=norm).eval()
    assert sum(p.numel() for p in model.parameters()) == parameters
    with torch.no_grad():
        z = model.features(samples(name))
        logits = model(samples(name))
    assert z.shape == (3, d)
    g = sum(p.numel() for p in model.classifier.parameters())
    assert g == 10 * (d + 1)  # the classifier is the last linear layer alone
    assert torch.equal(model.classifier(z), logits)
    assert logits.shape == (3, 10)
    assert check_model(model) is None


@pytest.mark.parametrize(
    ("name", "classes", "shape", "parameters"),
    [
        ("lstm", 80, (80,), 819_920),
        ("resnet18-imagenet", 50, (64, 64, 3), 11_202_162),
        ("mobilenetv2", 50, (64, 64, 3), 2_287_922),
        ("cct", 50, (64, 64, 3), 3_967_027),
    ],
)
def test_the_published_numbers_of_parameters(name, classes, shape, parameters):
    model = build(name, classes=classes, input_shape=shape)
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_every_model_is_covered_here():
    assert set(MODELS) == set(TABLE)
    assert set(NORMED_MODELS) < set(MODELS)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_norm_changes_exactly_the_normed_models(name):
    def layers(norm):
        return {type(module).__name__ for module in build(name, norm=norm).modules()}

    assert ("BatchNorm2d" in layers("batch")) == (name in NORMED_MODELS)
    assert ("GroupNorm" in layers("group")) == (name in NORMED_MODELS)
    assert "BatchNorm2d" not in layers("group")
    group = [m.num_groups for m in build(name, norm="group").modules() if hasattr(m, "num_groups")]
    assert set(group) <= {2}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_weights_depend_on_the_seed_only(name):
    torch.manual_seed(123)
    first = build(name, seed=5).state_dict()
    torch.manual_seed(456)
    second = build(name, seed=5).state_dict()
    other = build(name, seed=6)
    assert all(torch.equal(first[key], second[key]) for key in first)
    weight = next(other.classifier.parameters())
    assert not any(torch.equal(weight, tensor) for tensor in first.values())


def test_weights_are_those_of_a_seeded_torch():
    torch.manual_seed(5)
    expected = nn.Linear(4, 3)
    got = build("linear", classes=3, input_shape=(4,), seed=5)
    assert torch.equal(got.classifier.weight, expected.weight)
    assert torch.equal(got.classifier.bias, expected.bias)


def test_global_generator_is_untouched_even_after_an_error():
    torch.manual_seed(9)
    before = torch.get_rng_state()
    build("cnn")
    with pytest.raises(ValueError, match="16×16"):
        build("cnn", input_shape=(8, 8, 3))
    with seeded_construction(3):
        torch.rand(5)
    assert torch.equal(torch.get_rng_state(), before)


def test_modules_built_after_the_base_leave_its_weights_alone():
    with seeded_construction(5):
        base = MODELS["mlp"](10, (7,))
        nn.Linear(200, 512)
    alone = build("mlp", input_shape=(7,), seed=5)
    assert torch.equal(base.classifier.weight, alone.classifier.weight)


@pytest.mark.parametrize("shape", [(28, 28, 1), (64, 64, 3), (16, 20, 3)])
@pytest.mark.parametrize("name", ["cnn", "resnet8", "resnet18-imagenet", "mobilenetv2", "cct"])
def test_other_image_sizes(name, shape):
    model = build(name, input_shape=shape, classes=7)
    assert model(images(2, shape)).shape == (2, 7)


def test_feature_vectors_of_any_shape():
    for name, d in (("mlp", 200), ("linear", 12)):
        model = build(name, input_shape=(3, 4), classes=5)
        assert model.features(torch.randn(2, 3, 4)).shape == (2, d)
        assert model(torch.randn(2, 3, 4)).shape == (2, 5)


def test_cnn_equals_the_published_order_of_layers():
    model = build("cnn")
    state = model.state_dict()
    x = images()
    for layer in ("conv1", "conv2"):  # convolution, ReLU, pool, as the FedAvg paper has it
        x = F.max_pool2d(F.conv2d(x, state[f"{layer}.weight"], state[f"{layer}.bias"]).relu(), 2)
    assert x.shape == (3, 64, 5, 5)
    z = F.linear(x.reshape(3, -1), state["hidden.weight"], state["hidden.bias"]).relu()
    torch.testing.assert_close(model.features(images()), z)


def resnet_reference(state, x, norm, stages, blocks, training):
    """ResNet logits from the state dict alone."""

    def normalise(name, x):
        weight, bias = state[f"{name}.weight"], state[f"{name}.bias"]
        if norm == "group":
            groups = x.reshape(len(x), 2, -1)
            mean = groups.mean(2, keepdim=True)
            variance = groups.var(2, unbiased=False, keepdim=True)
            x = ((groups - mean) / (variance + 1e-5).sqrt()).reshape(x.shape)
        else:
            if training:
                mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
            else:
                mean, variance = state[f"{name}.running_mean"], state[f"{name}.running_var"]
            x = (x - mean[:, None, None]) / (variance[:, None, None] + 1e-5).sqrt()
        return x * weight[:, None, None] + bias[:, None, None]

    x = normalise("bn1", F.conv2d(x, state["conv1.weight"], padding=1)).relu()
    for stage in range(1, stages + 1):
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            stride = 2 if stage > 1 and block == 0 else 1
            out = F.conv2d(x, state[f"{name}.conv1.weight"], stride=stride, padding=1)
            out = normalise(f"{name}.bn1", out).relu()
            out = F.conv2d(out, state[f"{name}.conv2.weight"], padding=1)
            out = normalise(f"{name}.bn2", out)
            if stride == 2:
                x = F.conv2d(x, state[f"{name}.downsample.0.weight"], stride=2)
                x = normalise(f"{name}.downsample.1", x)
            x = (x + out).relu()
    return F.linear(x.mean((2, 3)), state["fc.weight"], state["fc.bias"])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize(("name", "stages", "blocks"), [("resnet8", 3, 1), ("resnet18", 4, 2)])
def test_resnets_equal_a_functional_reference(name, stages, blocks, norm, training):
    model = build(name, norm=norm).double()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for key, value in model.state_dict().items():  # exercise scales, shifts and statistics
            if ("bn" in key or "downsample.1" in key) and value.is_floating_point():
                value.copy_(torch.rand(value.shape, generator=generator) + 0.5)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    x = images(2).double()
    with torch.no_grad():
        got = model.train(training)(x)
    expected = resnet_reference(state, x, norm, stages, blocks, training)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


def test_resnet18_keys_are_torchvisions():
    keys = set(build("resnet18").state_dict())
    assert len(keys) == 122  # as many as torchvision's ResNet18
    bn = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
    assert {f"layer4.1.bn2.{leaf}" for leaf in bn} <= keys
    assert {"conv1.weight", "layer2.0.downsample.0.weight", "fc.weight", "fc.bias"} <= keys
    assert not any(key.startswith(("layer1.0.downsample", "layer5")) for key in keys)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vgg", {}, "one of cnn, resnet8, resnet18, mlp, linear, .*got 'vgg'"),
        ("resnet8", {"norm": "layer"}, "one of batch, group, got 'layer'"),
        ("cnn", {"classes": 0}, "cnn: classes must be >= 1, got 0"),
        ("cnn", {"input_shape": (15, 32, 3)}, "at least 16×16, got 15×32"),
        ("cnn", {"input_shape": (512,)}, r"needs images.*got \(512,\).*mlp or linear"),
        ("resnet18", {"input_shape": (5, 5)}, r"needs images.*got \(5, 5\)"),
        ("mlp", {"input_shape": ()}, r"positive sizes, got \(\)"),
        ("lstm", {"input_shape": (32, 32, 3)}, r"lstm needs text.*got \(32, 32, 3\).*cnn"),
        ("linear", {"input_shape": (0, 3)}, r"positive sizes, got \(0, 3\)"),
    ],
)
def test_bad_requests_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        build(name, **options)


class WithoutClassifier(nn.Module):
    def features(self, x):
        return x


class ClassifierIsAFunction(nn.Module):
    def features(self, x):
        return x

    def classifier(self, z):
        return z


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(3, 2), "model Linear has no method features.* and no attribute classifier"),
        (WithoutClassifier(), "model WithoutClassifier has no attribute classifier"),
        (ClassifierIsAFunction(), "classifier that is a method, not a module"),
        (len, "must be a torch.nn.Module, got builtin_function_or_method"),
    ],
)
def test_unsplit_user_models_are_refused(model, message):
    with pytest.raises(TypeError, match=message):
        check_model(model)


def test_the_example_in_the_message_is_accepted():
    with pytest.raises(TypeError) as caught:
        check_model(nn.Identity())
    example = str(caught.value).split("as in\n")[1]
    namespace = {"torch": torch}
    exec("if True:\n" + example, namespace)
    model = namespace["MyModel"]()
    check_model(model)
    assert model.classifier(model.features(torch.zeros(2, 8, 8))).shape == (2, 10)
