"""What the model files share: the shape of a sample, and the normalisation layers."""

from collections.abc import Callable

from torch import nn

InputShape = tuple[int, ...]  # (H, W, C) for images, (T,) for text, any shape for features

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
