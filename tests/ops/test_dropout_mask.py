import pytest
import torch
from backends import DEVICE, require

from c2v_sim.ops import dropout_mask
from c2v_sim.ops.dropout_mask import _operator
from c2v_sim.ops.fused_ffn import keep_mask


def seed_tensor(seed):
    return torch.tensor(seed, device=DEVICE)


@pytest.mark.parametrize(
    ("rows", "columns"), [(0, 5), (1, 1), (7, 31), (8, 128), (9, 129), (3, 257)]
)
def test_triton_keeps_what_the_reference_keeps(rows, columns):
    require(_operator, "triton", seed_tensor(0))
    for seed, first in ((0, 0), (2**62 - 1, 5), (-3, 2**33)):
        masks = [
            dropout_mask(rows, columns, 6554, seed_tensor(seed), first=first, backend=backend)
            for backend in ("triton", "torch")
        ]
        assert masks[0].dtype == torch.bool
        assert masks[0].shape == (rows, columns)
        assert torch.equal(*masks)


def test_rows_in_pieces_are_those_of_the_whole_and_of_fused_ffn():
    whole = dropout_mask(20, 40, 30000, seed_tensor(9))
    assert torch.equal(whole, keep_mask(20, 40, 30000, seed_tensor(9)))
    pieces = [dropout_mask(n, 40, 30000, seed_tensor(9), first=f) for f, n in ((0, 7), (7, 13))]
    assert torch.equal(whole, torch.cat(pieces))
    assert not torch.equal(whole, dropout_mask(20, 40, 30000, seed_tensor(10)))


def test_the_share_that_is_kept():
    kept = dropout_mask(1000, 200, 6554, seed_tensor(1)).double().mean().item()
    assert abs(kept - (1 - 6554 / 65536)) < 4 * (0.09 / 200_000) ** 0.5
    assert dropout_mask(9, 9, 0, seed_tensor(1)).all()
    assert not dropout_mask(9, 9, 65536, seed_tensor(1)).any()
    with pytest.raises(ValueError, match=r"dropped must be in 0..65536, got 70000"):
        dropout_mask(1, 1, 70000, seed_tensor(1))
