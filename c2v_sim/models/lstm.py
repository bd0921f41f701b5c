"""LEAF's character model (Caldas et al. 2018): text [B, T] → logits of the next one [B, K]."""

from torch import Tensor, nn

from c2v_sim.models.common import InputShape

SYMBOLS = 80  # of LEAF's alphabet


class LSTM(nn.Module):
    """Embedding of 8, two LSTM layers of 256, the last step's output."""

    def __init__(self, classes: int, input_shape: InputShape) -> None:
        super().__init__()
        if len(input_shape) != 1:
            raise ValueError(
                f"lstm needs text, input_shape (T,) characters, got {input_shape}; "
                "for images use cnn or resnet8"
            )
        self.embedding = nn.Embedding(SYMBOLS, 8)
        self.lstm = nn.LSTM(8, 256, num_layers=2, batch_first=True)
        self.classifier = nn.Linear(256, classes)

    def features(self, x: Tensor) -> Tensor:  # integers in 0..79, [B, T] -> [B, 256]
        if x.is_floating_point():
            raise TypeError(f"lstm needs characters as integers 0..{SYMBOLS - 1}, got {x.dtype}")
        outputs, _ = self.lstm(self.embedding(x.long()))  # [B, T, 256]
        return outputs[:, -1]

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))
