"""Residual networks of basic blocks (He et al. 2016): [B, C, H, W] → [B, K].

Key names are torchvision's. The stem for small images is one 3×3 convolution of stride 1; the
ImageNet stem is torchvision's 7×7 of stride 2 and a 3×3 max-pool of stride 2, with its
initialisation.
"""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from c2v_sim.models.common import NORMS, InputShape, he_normal, image_shape
from c2v_sim.models.faster.normalized import RELU, activated

RESNET8, RESNET18 = (16, 32, 64), (64, 128, 256, 512)  # channels of the stages


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
        x = activated(self.bn1, self.conv1(x), most=RELU)
        return activated(self.bn2, self.conv2(x), shortcut=shortcut, most=RELU)


class ResNet(nn.Module):
    """Stages of basic blocks behind a stem; each stage after the first halves H, W."""

    def __init__(
        self,
        classes: int,
        input_shape: InputShape,
        norm: str,
        widths: Sequence[int],
        blocks: int,
        imagenet_stem: bool = False,
    ) -> None:
        super().__init__()
        channels = image_shape("resnet", input_shape)[2]
        self.imagenet_stem = imagenet_stem
        kernel, stride = (7, 2) if imagenet_stem else (3, 1)
        self.conv1 = nn.Conv2d(channels, widths[0], kernel, stride, kernel // 2, bias=False)
        self.bn1 = NORMS[norm](widths[0])
        self.stages: list[str] = []
        for stage, (inputs, outputs) in enumerate(zip([widths[0], *widths], widths, strict=False)):
            first = BasicBlock(inputs, outputs, 2 if stage else 1, norm)
            rest = [BasicBlock(outputs, outputs, 1, norm) for _ in range(blocks - 1)]
            self.stages.append(f"layer{stage + 1}")
            self.add_module(self.stages[-1], nn.Sequential(first, *rest))
        self.fc = nn.Linear(widths[-1], classes)
        if imagenet_stem:
            he_normal(self)

    @property
    def classifier(self) -> nn.Linear:
        return self.fc  # torchvision's name in the state dict

    def features(self, x: Tensor) -> Tensor:  # [B, C, H, W] -> [B, widths[-1]]
        x = activated(self.bn1, self.conv1(x), most=RELU)
        if self.imagenet_stem:
            x = F.max_pool2d(x, 3, 2, 1)
        for stage in self.stages:
            x = self.get_submodule(stage)(x)
        return x.mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.features(x))
