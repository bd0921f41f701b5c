import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from c2v_sim.training.arena import layout_of
from c2v_sim.training.local_client import LocalClient
from c2v_sim.training.optimisers import Adam, Sgd, of_torch


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Sgd(0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
        (
            Sgd(0.1, momentum=0.9, weight_decay=0.01),
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        ),
        (Adam(0.01), lambda p: torch.optim.Adam(p, lr=0.01)),
        (
            of_torch(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        ),
        (
            of_torch(lambda p: torch.optim.AdamW(p, lr=0.01), lr=1.0, momentum=0.0, weight_decay=1),
            lambda p: torch.optim.AdamW(p, lr=0.01),
        ),
    ],
)
def test_steps_equal_torch_and_a_new_start_forgets(ours, theirs):
    g = torch.Generator().manual_seed(0)
    module = nn.Linear(7, 8)  # a row without padding
    client = LocalClient(module, layout_of(module), torch.device("cpu"))
    row, gradients = client.parameters, client.gradients
    client.model.bind(client.row.data[0], client.row.integers[0])
    row.copy_(torch.randn(len(row), generator=g))
    for _ in range(2):  # the second participation must not see the first one's momentum
        step = ours.start(client)
        plain = row.clone().requires_grad_()
        optimiser = theirs([plain])
        for _ in range(4):
            gradients.copy_(torch.randn(len(row), generator=g))
            plain.grad = gradients.clone()
            optimiser.step()
            step()
            torch.testing.assert_close(row, plain.detach())
            assert not gradients.any()


def test_adam_has_no_place_for_an_algorithms_terms():
    module = nn.Linear(2, 2)
    client = LocalClient(module, layout_of(module), torch.device("cpu"))
    with pytest.raises(ValueError, match="adam has no place for the terms proximal"):
        Adam().start(client, proximal=0.1)


def test_an_algorithms_terms_through_torch_are_those_of_the_fused_step():
    ends = []
    settings = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
    for optimiser in (Sgd(**settings), of_torch(torch.optim.SGD, **settings)):
        g = torch.Generator().manual_seed(0)
        module = nn.Linear(7, 8)  # a row without padding
        client = LocalClient(module, layout_of(module), torch.device("cpu"))
        client.model.bind(client.row.data[0], client.row.integers[0])
        size = len(client.parameters)
        client.parameters.copy_(torch.randn(size, generator=g))
        terms = {"linear": torch.randn(size, generator=g), "proximal": 0.3, "max_grad_norm": 2.0}
        terms |= {"anchor": torch.randn(size, generator=g), "extra_decay": torch.tensor([0.2])}
        step = optimiser.start(client, **terms)
        for _ in range(4):
            client.gradients.copy_(torch.randn(size, generator=g))
            step()
        ends.append(client.parameters.clone())
    torch.testing.assert_close(ends[1], ends[0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (torch.optim.AdamW, "momentum = 0.9 has no effect on AdamW"),
        (torch.optim.LBFGS, "has no effect on LBFGS"),
        (lambda p: torch.optim.LBFGS(p), "LBFGS asks for a closure"),
        (lambda p: len(p), "must make a torch.optim.Optimizer, got int"),
    ],
)
def test_an_optimiser_that_cannot_be_used_is_refused(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        of_torch(make, lr=0.1, momentum=0.9, weight_decay=0.0)


class Counted(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.overloadpacket._qualified_op_name)
        return function(*args, **(kwargs or {}))


def test_a_step_with_a_weight_decay_of_the_client_is_one_operator():
    """FedDyn's; its options are made when the client begins, at an address of the lane."""
    module = nn.Linear(7, 8)
    client = LocalClient(module, layout_of(module), torch.device("cpu"))
    sgd, addresses, ends = Sgd(0.1, momentum=0.9, weight_decay=0.01), set(), []
    for extra in (0.2, 0.4):
        client.parameters.fill_(1.0)
        client.gradients.fill_(1.0)
        step = sgd.start(client, extra_decay=torch.tensor([extra]), max_grad_norm=100.0)
        addresses.add(client.owned_memory("optimiser", "options", (1, 5)).data_ptr())
        with Counted() as counted:
            step()
        computing = [name for name in counted.names if not name.startswith("aten::")]
        assert len(computing) == 1
        assert set(counted.names) - set(computing) <= {"aten::unsqueeze", "aten::detach"}
        ends.append(client.parameters[0].item())
    assert len(addresses) == 1
    assert ends == pytest.approx([1 - 0.1 * 1.21, 1 - 0.1 * 1.41])
