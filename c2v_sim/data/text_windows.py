"""Overlapping windows of one text, [N, length], that are cut out when asked for and never stored.

Enters: the text as symbol numbers, uint8 [T], and where each of N windows starts. Leaves: the
chosen windows, uint8 [B, length]. A million windows cost a million start numbers, not 80 million
symbols; text and starts lie on the device.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Windows:
    """Stands where a tensor of samples [N, length] would: same shape, dtype and row selection."""

    text: Tensor = field(repr=False)  # uint8 [T]
    starts: Tensor = field(repr=False)  # int64 [N]
    length: int

    def __post_init__(self) -> None:
        for name, dtype in (("text", torch.uint8), ("starts", torch.int64)):
            tensor = getattr(self, name)
            if tensor.dtype != dtype or tensor.dim() != 1:
                raise ValueError(
                    f"Windows: {name} must be {dtype} [N], got {tensor.dtype} {tuple(tensor.shape)}"
                )
        last = len(self.text) - self.length
        if self.length < 1 or last < 0:
            raise ValueError(
                f"Windows: length must be 1..{len(self.text)}, the text's, got {self.length}"
            )
        if len(self.starts):
            low, high = (int(v) for v in torch.aminmax(self.starts))
            if low < 0 or high > last:
                raise ValueError(f"Windows: starts must be in 0..{last}, got {low}..{high}")

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self), self.length))

    @property
    def ndim(self) -> int:
        return 2

    @property
    def dtype(self) -> torch.dtype:
        return self.text.dtype

    def to(self, device: torch.device) -> "Windows":
        return Windows(self.text.to(device), self.starts.to(device), self.length)

    def take(self, ids: Tensor | slice) -> "Windows":
        """Some of the windows, still not stored."""
        return Windows(self.text, self.starts[ids], self.length)

    def index_select(self, dim: int, ids: Tensor) -> Tensor:  # uint8 [B, length]
        """The windows `ids` [B] as rows; `dim` is 0, as a tensor of samples would be asked."""
        assert dim == 0
        # The unfolded text is a view in which every window is a row.
        rows = self.text.unfold(0, self.length, 1)
        return rows.index_select(0, self.starts.index_select(0, ids))

    def strings(self, alphabet: str) -> list[str]:
        """All windows as strings; symbol k is alphabet[k]."""
        symbols = np.array(list(alphabet))
        rows = self.index_select(0, torch.arange(len(self))).numpy()
        return symbols[rows].view(f"U{self.length}").ravel().tolist()
