import pytest
import torch
from torch import nn

from c2v_sim.models import build_model
from c2v_sim.training.arena import Arena, BoundModule, copy_of, layout_of


def resnet(norm="batch"):
    return build_model("resnet8", classes=3, input_shape=(8, 8, 3), norm=norm, seed=0)


def test_layout_covers_every_tensor_once():
    model = resnet()
    layout = layout_of(model)
    assert layout.trainable == sum(p.numel() for p in model.parameters())
    floats = sum(b.numel() for b in model.buffers() if b.is_floating_point())
    assert layout.size == layout.trainable + floats
    ends = [slot.end for slot in layout.parameters + layout.buffers]
    starts = [slot.offset for slot in layout.parameters + layout.buffers]
    assert starts == [0, *ends[:-1]]
    assert all("num_batches_tracked" in name for name in layout.integers)


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
    for name in ("fc.bias", "norm.weight"):
        ours, theirs = copied.get_parameter(name), model.get_parameter(name)
        assert ours.data_ptr() != theirs.data_ptr()
    assert copied.positions.data_ptr() != model.positions.data_ptr()


def test_half_parameters_are_refused_by_name_unless_they_are_frozen():
    model = nn.Sequential(nn.Linear(2, 2).half(), nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"parameter 0.weight must be float32 to be trained"):
        layout_of(model)
    model[0].requires_grad_(False)
    assert layout_of(model).trainable == 6
    with pytest.raises(ValueError, match="no parameters"):
        layout_of(model.requires_grad_(False))
