"""Flattened input and at most one hidden layer: [B, …] → [B, K]."""

import math

import torch.nn.functional as F
from torch import Tensor, nn

from c2v_sim.models.common import InputShape


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
