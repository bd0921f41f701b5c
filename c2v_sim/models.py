"""Client networks: images [B, C, H, W] or feature arrays [B, …], float32 → logits [B, K].

Every model splits as the paper needs it, forward(x) = classifier(features(x)): `features` gives
z [B, d], `classifier` is the last linear layer g. All layers start from PyTorch's default
initialisation.

| model    | definition                                                       | d   | K = 10     |
|----------|------------------------------------------------------------------|-----|------------|
| cnn      | 5×5 convolutions 32 and 64, each max-pooled, then 512 (FedAvg)    | 512 | 878,538    |
| resnet8  | 3×3 stem 16, one basic block each of 16, 32, 64 channels          | 64  | 78,042     |
| resnet18 | 3×3 stem 64, two basic blocks each of 64, 128, 256, 512 channels  | 512 | 11,173,962 |
| mlp      | flattened input, one hidden layer of 200                          | 200 |            |
| linear   | flattened input                                                   |     |            |

Parameters are for 32×32 RGB. The ResNets carry torchvision's key names.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from c2v_sim.seeding import seeded_construction

InputShape = tuple[int, ...]  # (H, W, C) for images, any shape for features

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "group": lambda channels: nn.GroupNorm(2, channels),
}


class CNN(nn.Module):
    """The convolutional network of the FedAvg paper; ReLU after the pool gives the same values."""

    def __init__(self, classes: int, input_shape: InputShape) -> None:
        super().__init__()
        height, width, channels = _image_shape("cnn", input_shape)
        after = [((side - 4) // 2 - 4) // 2 for side in (height, width)]
        if min(after) < 1:
            raise ValueError(f"cnn: images must be at least 16×16, got {height}×{width}")
        self.conv1 = nn.Conv2d(channels, 32, 5)
        self.conv2 = nn.Conv2d(32, 64, 5)
        self.hidden = nn.Linear(64 * after[0] * after[1], 512)
        self.classifier = nn.Linear(512, classes)

    def features(self, x: Tensor) -> Tensor:  # [B, C, H, W] -> [B, 512]
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        return F.relu(self.hidden(x.flatten(1)))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions around a shortcut, which is a 1×1 projection where shapes change."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = NORMS[norm](outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = NORMS[norm](outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            project = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(project, NORMS[norm](outputs))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(x)) + shortcut)


class ResNet(nn.Module):
    """Stages of basic blocks behind a 3×3 stride-1 stem; each stage after the first halves H, W."""

    def __init__(
        self, classes: int, input_shape: InputShape, norm: str, widths: list[int], blocks: int
    ) -> None:
        super().__init__()
        channels = _image_shape("resnet", input_shape)[2]
        self.conv1 = nn.Conv2d(channels, widths[0], 3, padding=1, bias=False)
        self.bn1 = NORMS[norm](widths[0])
        self.stages: list[str] = []
        for stage, (inputs, outputs) in enumerate(zip([widths[0], *widths], widths, strict=False)):
            first = BasicBlock(inputs, outputs, 2 if stage else 1, norm)
            rest = [BasicBlock(outputs, outputs, 1, norm) for _ in range(blocks - 1)]
            self.stages.append(f"layer{stage + 1}")
            self.add_module(self.stages[-1], nn.Sequential(first, *rest))
        self.fc = nn.Linear(widths[-1], classes)

    @property
    def classifier(self) -> nn.Linear:
        return self.fc  # torchvision's name in the state dict

    def features(self, x: Tensor) -> Tensor:  # [B, C, H, W] -> [B, widths[-1]]
        x = F.relu(self.bn1(self.conv1(x)))
        for stage in self.stages:
            x = self.get_submodule(stage)(x)
        return x.mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x))


class MLP(nn.Module):
    """Flattened input, one hidden layer or (`hidden` = 0) none."""

    def __init__(self, classes: int, input_shape: InputShape, hidden: int) -> None:
        super().__init__()
        inputs = math.prod(input_shape)
        self.hidden = nn.Linear(inputs, hidden) if hidden else None
        self.classifier = nn.Linear(hidden or inputs, classes)

    def features(self, x: Tensor) -> Tensor:  # [B, …] -> [B, d]
        x = x.flatten(1)
        return x if self.hidden is None else F.relu(self.hidden(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


# name → builder(classes, input_shape, norm)
MODELS: dict[str, Callable[[int, InputShape, str], nn.Module]] = {
    "cnn": lambda classes, shape, norm: CNN(classes, shape),
    "resnet8": lambda classes, shape, norm: ResNet(classes, shape, norm, [16, 32, 64], 1),
    "resnet18": lambda classes, shape, norm: ResNet(classes, shape, norm, [64, 128, 256, 512], 2),
    "mlp": lambda classes, shape, norm: MLP(classes, shape, 200),
    "linear": lambda classes, shape, norm: MLP(classes, shape, 0),
}
NORMED_MODELS = ("resnet8", "resnet18")  # those that `norm` changes


def build_model(
    name: str, *, classes: int, input_shape: InputShape, norm: str = "batch", seed: int | None
) -> nn.Module:
    """A new model on the CPU; the same seed gives the same weights.

    `input_shape` is one sample's (H, W, C), or any shape for `mlp` and `linear`. Torch's global
    generator is left as it was; with `seed` None the weights are drawn from it.
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


def _image_shape(name: str, input_shape: InputShape) -> tuple[int, int, int]:
    if len(input_shape) != 3:
        raise ValueError(
            f"{name} needs images, input_shape (H, W, C), got {input_shape}; "
            "for feature vectors use mlp or linear"
        )
    height, width, channels = input_shape
    return height, width, channels


_EXPECTED = """Expected: features(x) -> z [B, d] and a module classifier: z -> logits [B, K], as in
    class MyModel(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.classifier = torch.nn.Linear(64, 10)
        def features(self, x):
            return x.flatten(1)"""
