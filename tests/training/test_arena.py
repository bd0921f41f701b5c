import copy

import pytest
import torch
from torch import nn

from c2v_sim.models import build_model
from c2v_sim.training.arena import LARGE, Arena, BoundModule, copy_of, layout_of


def resnet(norm="batch"):
    return build_model("resnet8", classes=3, input_shape=(8, 8, 3), norm=norm, seed=0)


def test_layout_covers_every_tensor_once():
    model = resnet()
    layout = layout_of(model)
    assert layout.parameter_count == sum(p.numel() for p in model.parameters())
    floats = sum(b.numel() for b in model.buffers() if b.is_floating_point())
    assert layout.buffer_count == floats
    covered = torch.zeros(layout.size, dtype=torch.int64)
    for slot in layout.parameters + layout.buffers:
        slot.view(covered).add_(1)
    assert covered.max() == 1
    assert covered.sum() == layout.parameter_count + floats
    assert all("num_batches_tracked" in name for name in layout.integers)


@pytest.mark.parametrize("model", ["resnet8", "mlp", "cnn", "cct"])
def test_tensors_begin_at_16_bytes_and_rows_at_128(model):
    layout = layout_of(build_model(model, classes=3, input_shape=(16, 16, 3), seed=0))
    arena = Arena(layout, 3)
    slots = layout.parameters + layout.buffers
    assert all(slot.view(row).data_ptr() % 16 == 0 for slot in slots for row in arena.data)
    assert 4 * layout.trainable % 128 == 4 * layout.size % 128 == 0
    assert 0 <= layout.trainable - layout.parameters[-1].end < 32
    assert all(slot.offset >= layout.trainable for slot in layout.buffers)


def test_rows_without_padding_are_spread_and_others_are_left_alone():
    layout = layout_of(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))  # 6, 2, 2, 2; 2, 2
    packed = torch.arange(1, 13.0)
    rows = layout.spread(torch.stack([packed, -packed])[:, :12], layout.trainable)
    assert rows.shape == (2, 32)
    assert rows[0, :18].tolist() == [*range(1, 7), 0, 0, 7, 8, 0, 0, 9, 10, 0, 0, 11, 12]
    assert not rows[:, 18:].any()
    assert torch.equal(rows[1], -rows[0])
    whole = layout.spread(torch.arange(1, 17.0), layout.size)
    assert whole.shape == (64,)
    assert torch.equal(whole[:32], rows[0])
    assert whole[32:38].tolist() == [13, 14, 0, 0, 15, 16]
    for other in (rows, torch.ones(2, 11), torch.ones(12, 3)):
        assert layout.spread(other, layout.trainable) is other
    assert layout.spread(packed, 40) is packed


def test_read_and_state_dict_are_inverse():
    model = resnet()
    model(torch.randn(4, 3, 8, 8))  # moves the running statistics
    arena = Arena(layout_of(model), 2)
    arena.read(model, 1)
    state = arena.state_dict(1)
    assert state.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(state[name], tensor), name
    assert not arena.data[0].any()


def test_a_bound_module_computes_and_trains_in_its_row():
    model, x = resnet(), torch.randn(4, 3, 8, 8)
    layout = layout_of(model)
    arena = Arena(layout, 2)
    arena.read(model, 0)
    arena.data[1].copy_(arena.data[0])
    expected = model(x)
    bound = BoundModule(resnet(norm="batch"), layout, "cpu")
    row = bound.bind(arena.data[1], arena.integers[1])
    torch.testing.assert_close(bound.module(x), expected)
    before = arena.data.clone()
    bound.module(x).square().sum().backward()
    assert bound.gradients.abs().sum() > 0
    reference = resnet()
    reference(x).square().sum().backward()
    for slot, parameter in zip(layout.parameters, reference.parameters(), strict=True):
        torch.testing.assert_close(
            slot.view(bound.gradients), parameter.grad, rtol=1e-4, atol=1e-4, msg=slot.name
        )
    row -= 0.1 * bound.gradients
    assert torch.equal(arena.data[0], before[0])  # the other row is untouched
    assert not torch.equal(arena.data[1], before[1])
    assert arena.integers[1].tolist() == [2] * len(layout.integers)  # two forward passes counted


class Tables(nn.Module):
    """Buffers of every kind."""

    def __init__(self):
        super().__init__()
        self.fc, self.norm = nn.Linear(2, 2), nn.BatchNorm1d(2)
        self.register_buffer("mask", torch.full((3,), -torch.inf), persistent=False)
        self.register_buffer("positions", torch.arange(5))


def test_what_does_not_change_has_no_place_in_a_row():
    model = Tables()
    model.fc.weight.requires_grad_(False)
    layout = layout_of(model)
    assert [slot.name for slot in layout.parameters] == ["fc.bias", "norm.weight", "norm.bias"]
    assert [slot.name for slot in layout.buffers] == ["norm.running_mean", "norm.running_var"]
    assert layout.integers == ("norm.num_batches_tracked",)


def test_copies_share_frozen_parameters_alone():
    model = Tables()
    model.fc.weight.requires_grad_(False)
    copied = copy_of(model, layout_of(model))
    assert copied.fc.weight is model.fc.weight
    before = copy.deepcopy(model)
    bound = BoundModule(copied, layout_of(model), "cpu")
    bound.bind(torch.ones(layout_of(model).size), torch.zeros(1, dtype=torch.int64))
    for name in ("fc.bias", "norm.weight"):
        assert copied.get_parameter(name).eq(1).all()
        assert torch.equal(model.get_parameter(name), before.get_parameter(name))
    assert copied.positions.data_ptr() != model.positions.data_ptr()


def test_half_parameters_are_refused_by_name_unless_they_are_frozen():
    model = nn.Sequential(nn.Linear(2, 2).half(), nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"parameter 0.weight must be float32 to be trained"):
        layout_of(model)
    model[0].requires_grad_(False)
    assert layout_of(model).parameter_count == 6
    with pytest.raises(ValueError, match="no parameters"):
        layout_of(model.requires_grad_(False))


def test_large_rows_have_memory_of_their_own_that_is_zero():
    size = layout_of(nn.Linear(1, 1)).size
    rows = Arena(layout_of(nn.Linear(1, 1)), LARGE // (4 * size) + 1).data
    assert rows.nbytes >= LARGE
    assert not rows.any()
    rows[-1] = 1.0
    assert rows.sum() == size
