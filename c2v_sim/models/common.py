"""What models have in common: the shape of a sample, normalisation, features and classifier."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

InputShape = tuple[int, ...]  # (H, W, C) for images, (T,) for text, any shape for features

_EXPECTED = """Expected: features(x) -> z [B, d] and a module classifier: z -> logits [B, K], as in
    class MyModel(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.classifier = torch.nn.Linear(64, 10)
        def features(self, x):
            return x.flatten(1)"""

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "group": lambda channels: nn.GroupNorm(2, channels),
}


def image_shape(name: str, input_shape: InputShape) -> tuple[int, int, int]:
    """(H, W, C), or an error that names the model."""
    if len(input_shape) != 3:
        raise ValueError(
            f"{name} needs images, input_shape (H, W, C), got {input_shape}; "
            "for feature vectors use mlp or linear, for text lstm"
        )
    height, width, channels = input_shape
    return height, width, channels


def he_normal(module: nn.Module) -> None:
    """Initialise all convolutions as torchvision does: normal, variance 2 / fan-out."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")


def logits(module: nn.Module, x: Tensor) -> Tensor:  # [B, …] -> [B, K]
    """classifier(features(x)): all that the simulator asks of a model."""
    return module.classifier(module.features(x))  # type: ignore[operator]


def treats_samples_alone(module: nn.Module, x: Tensor) -> bool:
    """Whether the others of a batch leave a sample's logits in training as they are, which batch
    norm does not; seen on x [B, …], different inputs. Dropout aside."""
    if len(x) < 3:
        return False
    trial = copy.deepcopy(module).train()
    for part in trial.modules():
        if isinstance(getattr(part, "p", None), float):
            part.p = 0.0  # type: ignore[assignment]
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        among_all, among_few = logits(trial, x)[:2], logits(trial, x[:2])
    return torch.allclose(among_all, among_few, rtol=1e-4, atol=1e-5)


def check_model(module: object) -> None:
    """Refuse a user's model that does not split into features and classifier."""
    name = type(module).__name__
    if not isinstance(module, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {name}")
    problems = []
    if not callable(getattr(module, "features", None)):
        problems.append("no method features(x) -> z [B, d]")
    if not hasattr(module, "classifier"):
        problems.append("no attribute classifier")
    elif not isinstance(module.classifier, nn.Module):
        problems.append(f"a classifier that is a {type(module.classifier).__name__}, not a module")
    if problems:
        raise TypeError(f"model {name} has {' and '.join(problems)}.\n{_EXPECTED}")
