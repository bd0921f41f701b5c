"""MobileNetV2 (Sandler et al. 2018), torchvision's layout and key names: [B, C, H, W] → [B, K].

Every block widens by 1×1, filters each channel by 3×3, narrows by 1×1, and adds its input where
shapes agree. Resolution falls 32-fold: 64×64 images end at 2×2. Dropout 0.2 before g belongs to
z, so that `classifier` holds g alone.
"""

from collections import OrderedDict

from torch import Tensor, nn

from c2v_sim.models.common import NORMS, InputShape, he_normal, image_shape
from c2v_sim.models.dropout import Dropout
from c2v_sim.models.faster.normalized import activated

STAGES = (  # expansion, channels, blocks, stride of the first
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
WIDTH = 1280


class ConvNormReLU6(nn.Sequential):
    """Convolution, normalisation, ReLU6, the last two in one operator where there is one."""

    def forward(self, x: Tensor) -> Tensor:
        return activated(self[1], self[0](x), most=6.0)


def _conv(inputs: int, outputs: int, kernel: int, stride: int, groups: int, norm: str) -> nn.Module:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return ConvNormReLU6(conv, NORMS[norm](outputs))


class InvertedResidual(nn.Module):
    """Widen, filter each channel, narrow without activation."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int, norm: str) -> None:
        super().__init__()
        wide = inputs * expansion
        widen = [_conv(inputs, wide, 1, 1, 1, norm)] if expansion != 1 else []
        self.conv = nn.Sequential(
            *widen,
            _conv(wide, wide, 3, stride, wide, norm),
            nn.Conv2d(wide, outputs, 1, bias=False),
            NORMS[norm](outputs),
        )
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        *layers, norm = self.conv
        y = x
        for layer in layers:
            y = layer(y)
        return activated(norm, y, shortcut=x if self.shortcut else None, most=0.0)


class MobileNetV2(nn.Module):
    """1280 features of an image."""

    def __init__(self, classes: int, input_shape: InputShape, norm: str) -> None:
        super().__init__()
        channels = image_shape("mobilenetv2", input_shape)[2]
        layers: list[nn.Module] = [_conv(channels, 32, 3, 2, 1, norm)]
        inputs = 32
        for expansion, outputs, blocks, stride in STAGES:
            for block in range(blocks):
                first = stride if block == 0 else 1
                layers.append(InvertedResidual(inputs, outputs, first, expansion, norm))
                inputs = outputs
        layers.append(_conv(inputs, WIDTH, 1, 1, 1, norm))
        # What follows has no parameters, so torchvision's keys stay as they are.
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), Dropout(0.2)]
        self.features = nn.Sequential(*layers)  # [B, C, H, W] -> [B, 1280]
        g = nn.Linear(WIDTH, classes)
        self.classifier = nn.Sequential(OrderedDict({"1": g}))  # torchvision's 0 is the dropout
        he_normal(self)
        nn.init.normal_(g.weight, 0.0, 0.01)
        nn.init.zeros_(g.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))
