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

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

from torch import nn

from c2v_sim.models.cct import CCT
from c2v_sim.models.cnn import CNN
from c2v_sim.models.common import NORMS, InputShape, check_model, logits
from c2v_sim.models.lstm import LSTM
from c2v_sim.models.mlp import MLP
from c2v_sim.models.mobilenet import MobileNetV2
from c2v_sim.models.pretrained import Pretrained, load_pretrained
from c2v_sim.models.resnet import RESNET8, RESNET18, ResNet
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

MODELS: dict[str, Callable[..., nn.Module]] = {  # of (classes, input_shape), some also of norm
    "cnn": CNN,
    "resnet8": partial(ResNet, widths=RESNET8, blocks=1),
    "resnet18": partial(ResNet, widths=RESNET18, blocks=2),
    "mlp": partial(MLP, hidden=200),
    "linear": partial(MLP, hidden=0),
    "lstm": LSTM,
    "resnet18-imagenet": partial(ResNet, widths=RESNET18, blocks=2, imagenet_stem=True),
    "mobilenetv2": MobileNetV2,
    "cct": CCT,
}
NORMED_MODELS = tuple(
    name for name, build in MODELS.items() if "norm" in inspect.signature(build).parameters
)


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
    options = {"norm": norm} if name in NORMED_MODELS else {}
    with seeded_construction(seed) if seed is not None else nullcontext():
        return MODELS[name](classes, tuple(input_shape), **options)
