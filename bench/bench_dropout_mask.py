"""dropout_mask against torch's own bernoulli_: bound by one write of the mask."""

import pytest
import torch

from c2v_sim.ops import dropout_mask


@pytest.mark.parametrize("columns", [64, 256])
def test_dropout_mask(compare, columns):
    seed, rows = torch.tensor(7), 4 * 8 * columns
    out = torch.empty(rows, columns)
    compare(
        lambda: dropout_mask(rows, columns, 6554, seed),
        {"eager": lambda: out.bernoulli_(0.9).bool()},
        bytes=rows * columns,
    )
