"""unit_rows: rows over their lengths, differentiable; the cosines of every torch reference."""

import torch
from torch import Tensor


def unit_rows(x: Tensor) -> tuple[Tensor, Tensor]:  # [N, D] -> [N, D], [N]
    """Rows of length 1, and the lengths; a zero row stays zero, with length 0 and no gradient.

    Scaled by the largest element first, so that squares neither overflow nor vanish.
    """
    if x.shape[1] == 0:
        return x, x.new_zeros(len(x))
    largest = x.detach().abs().amax(dim=1, keepdim=True)
    zero = largest == 0
    scaled = x / torch.where(zero, 1, largest)
    # The inner where keeps 0/0 out of the gradient.
    length = torch.linalg.vector_norm(torch.where(zero, 1, scaled), dim=1, keepdim=True)
    return torch.where(zero, 0, scaled / length), (largest * length).squeeze(1)
