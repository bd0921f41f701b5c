"""Client networks: images [B, C, H, W], features [B, …] or text [B, T] → logits [B, K].

Every model splits as the paper needs it, forward(x) = classifier(features(x)): `features` gives
z [B, d], `classifier` is the last linear layer g.

| model             | definition                                             | d    | parameters |
|-------------------|--------------------------------------------------------|------|------------|
| cnn               | 5×5 convolutions 32 and 64, pooled, 512 (FedAvg)       | 512  | 878,538    |
| resnet8           | 3×3 stem 16, a basic block each of 16, 32, 64 channels | 64   | 78,042     |
| resnet18          | 3×3 stem 64, two blocks each of 64, 128, 256, 512      | 512  | 11,173,962 |
| mlp               | flattened input, one hidden layer of 200               | 200  | 616,610    |
| linear            | flattened input                                        | 3072 | 30,730     |
| lstm              | 8-d embedding of 80 characters, two LSTM layers of 256 | 256  | 819,920    |
| resnet18-imagenet | the same blocks behind torchvision's 7×7 stem          | 512  | 11,202,162 |
| mobilenetv2       | torchvision's layout, dropout 0.2 before g             | 1280 | 2,287,922  |
| cct               | CCT-7/3x1: transformer on convolutional tokens         | 256  | 3,967,027  |

Parameters are for 32×32 RGB and 10 classes down to linear, 80 classes for lstm, 64×64 RGB and 50
classes below it. ResNets and MobileNetV2 carry torchvision's key names. The last three start from
their papers' initialisation, the others from PyTorch's default.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from torch import Tensor, nn

from c2v_sim.models.cct import CCT
from c2v_sim.models.cnn import CNN
from c2v_sim.models.common import NORMS, InputShape
from c2v_sim.models.lstm import LSTM
from c2v_sim.models.mlp import MLP
from c2v_sim.models.mobilenet import MobileNetV2
from c2v_sim.models.pretrained import Pretrained, load_pretrained
from c2v_sim.models.resnet import ResNet
from c2v_sim.system.seeding import seeded_construction

__all__ = [
    "MODELS",
    "NORMED_MODELS",
    "NORMS",
    "InputShape",
    "Pretrained",
    "build_model",
    "check_model",
    "load_pretrained",
    "logits",
]

RESNET18 = [64, 128, 256, 512]

# name → builder(classes, input_shape, norm)
MODELS: dict[str, Callable[[int, InputShape, str], nn.Module]] = {
    "cnn": lambda classes, shape, norm: CNN(classes, shape),
    "resnet8": lambda classes, shape, norm: ResNet(classes, shape, norm, [16, 32, 64], 1),
    "resnet18": lambda classes, shape, norm: ResNet(classes, shape, norm, RESNET18, 2),
    "mlp": lambda classes, shape, norm: MLP(classes, shape, 200),
    "linear": lambda classes, shape, norm: MLP(classes, shape, 0),
    "lstm": lambda classes, shape, norm: LSTM(classes, shape),
    "resnet18-imagenet": lambda classes, shape, norm: ResNet(
        classes, shape, norm, RESNET18, 2, imagenet_stem=True
    ),
    "mobilenetv2": lambda classes, shape, norm: MobileNetV2(classes, shape, norm),
    "cct": lambda classes, shape, norm: CCT(classes, shape),
}
NORMED_MODELS = (
    "resnet8",
    "resnet18",
    "resnet18-imagenet",
    "mobilenetv2",
)  # those that `norm` changes


def build_model(
    name: str, *, classes: int, input_shape: InputShape, norm: str = "batch", seed: int | None
) -> nn.Module:
    """A new model on the CPU; the same seed gives the same weights.

    `input_shape` is one sample's (H, W, C), (T,) for `lstm`, any shape for `mlp` and `linear`.
    Torch's global generator is left as it was; with `seed` None the weights are drawn from it.
    """
    if name not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {name!r}")
    if norm not in NORMS:
        raise ValueError(f"norm must be one of {', '.join(NORMS)}, got {norm!r}")
    if classes < 1:
        raise ValueError(f"{name}: classes must be >= 1, got {classes}")
    if not input_shape or min(input_shape) < 1:
        raise ValueError(f"{name}: input_shape must have positive sizes, got {input_shape}")
    with seeded_construction(seed) if seed is not None else nullcontext():
        return MODELS[name](classes, tuple(input_shape), norm)


def logits(module: Any, x: Tensor) -> Tensor:  # [B, …] -> [B, K]
    """classifier(features(x)): all that the simulator asks of a model."""
    return module.classifier(module.features(x))


def check_model(module: object) -> None:
    """Refuse a user's model that does not split into features and classifier.

    The smallest model that is accepted:

        class MyModel(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.classifier = torch.nn.Linear(64, 10)   # z [B, 64] -> logits [B, 10]
            def features(self, x):                           # x [B, …] -> z [B, 64]
                return x.flatten(1)
    """
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


_EXPECTED = """Expected: features(x) -> z [B, d] and a module classifier: z -> logits [B, K], as in
    class MyModel(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.classifier = torch.nn.Linear(64, 10)
        def features(self, x):
            return x.flatten(1)"""
