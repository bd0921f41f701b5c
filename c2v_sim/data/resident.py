"""Data that stays on the device: one uint8 tensor; batches are gathered and normalised there.

Images are stored [N, H, W, C], so the permuted batch is channels_last without a copy. Data that
is already floating point (a user's features) is handed on as it is, bytes that are no images as
floats of the same value. Windows of a text are cut out of the resident text and handed on, like
sequences, as int64 symbol numbers [B, length].
"""

import torch
from torch import Tensor

from c2v_sim.data.text_windows import Windows

PAD = 4  # pixels of reflection around an image that is cropped at random


class ResidentData:
    """Samples and labels on `device`; `batch(ids)` gives normalised inputs and labels."""

    def __init__(
        self,
        x: Tensor | Windows,  # uint8 [N, H, W, C], float [N, ...] or windows [N, length]
        y: Tensor,  # int64 [N]
        mean: tuple[float, ...],
        std: tuple[float, ...],
        device: torch.device,
    ) -> None:
        self.x, self.y = x.to(device), y.to(device)
        self.device = device
        self._images = x.dtype == torch.uint8 and x.ndim == 4
        if self._images:
            # (x / 255 - mean) / std as one multiply-add, of whole rows: for each pixel's few
            # channels alone torch would call its loop again.
            deviation = torch.tensor(std or (1.0,), device=device)
            scale, shift = 1.0 / (255.0 * deviation), -torch.tensor(mean or (0.0,), device=device)
            row = x.shape[2], x.shape[3]
            self._scale = scale.expand(row).flatten()
            self._shift = (shift / deviation).expand(row).flatten()

    def __len__(self) -> int:
        return len(self.y)

    def batch(self, ids: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Inputs [B, C, H, W] (float32, channels_last) and labels [B]; `generator`: augmented.

        Features are [B, …] as stored, windows int64 [B, length].
        """
        x, y = self.x.index_select(0, ids), self.y.index_select(0, ids)
        if not self._images:
            symbols = isinstance(self.x, Windows) or x.dtype == torch.int32
            return (x.long() if symbols else x.float()), y
        if generator is not None:
            x = crop_and_flip(x, generator)
        rows = x.flatten(2).to(torch.float32)
        scaled = torch.addcmul(self._shift, rows, self._scale)
        return scaled.view(x.shape).permute(0, 3, 1, 2), y


def crop_and_flip(x: Tensor, generator: torch.Generator) -> Tensor:  # [B, H, W, C], same out
    """Shift each image by up to PAD pixels (edges reflected) and mirror half of them."""
    count, height, width, _ = x.shape
    draw = torch.rand(3, count, 1, generator=generator, device=generator.device).to(x.device)
    rows = torch.arange(height, device=x.device) + (draw[0] * (2 * PAD + 1)).long() - PAD
    columns = torch.arange(width, device=x.device)
    columns = torch.where(draw[2] < 0.5, columns, width - 1 - columns)
    columns = columns + (draw[1] * (2 * PAD + 1)).long() - PAD
    rows, columns = (_reflect(i, n) for i, n in ((rows, height), (columns, width)))
    sample = torch.arange(count, device=x.device)[:, None, None]
    return x[sample, rows[:, :, None], columns[:, None, :]]


def _reflect(index: Tensor, size: int) -> Tensor:
    """Indices outside 0..size-1 mirrored back, the edge not repeated."""
    index = index.abs()
    return torch.where(index >= size, 2 * (size - 1) - index, index).clamp(0, size - 1)
