"""The convolutional network of the FedAvg paper (McMahan et al. 2017): [B, C, H, W] → [B, K]."""

import torch.nn.functional as F
from torch import Tensor, nn

from c2v_sim.models.common import InputShape, image_shape
from c2v_sim.models.faster.layers import convolve_and_pool


class CNN(nn.Module):
    """Two 5×5 convolutions, each pooled; ReLU after the pool gives the same values as before."""

    def __init__(self, classes: int, input_shape: InputShape) -> None:
        super().__init__()
        height, width, channels = image_shape("cnn", input_shape)
        after = [((side - 4) // 2 - 4) // 2 for side in (height, width)]
        if min(after) < 1:
            raise ValueError(f"cnn: images must be at least 16×16, got {height}×{width}")
        self.conv1 = nn.Conv2d(channels, 32, 5)
        self.conv2 = nn.Conv2d(32, 64, 5)
        self.hidden = nn.Linear(64 * after[0] * after[1], 512)
        self.classifier = nn.Linear(512, classes)

    def features(self, x: Tensor) -> Tensor:  # [B, C, H, W] -> [B, 512]
        x = convolve_and_pool(self.conv1, x)
        x = convolve_and_pool(self.conv2, x)
        return F.relu(self.hidden(x.flatten(1)))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))
