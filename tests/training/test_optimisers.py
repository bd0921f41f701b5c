import pytest
import torch
from torch import nn

from c2v_sim.training.arena import layout_of
from c2v_sim.training.local_client import LocalClient
from c2v_sim.training.optimisers import Adam, Sgd


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Sgd(0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
        (
            Sgd(0.1, momentum=0.9, weight_decay=0.01),
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        ),
        (Adam(0.01), lambda p: torch.optim.Adam(p, lr=0.01)),
    ],
)
def test_steps_equal_torch_and_a_new_start_forgets(ours, theirs):
    g = torch.Generator().manual_seed(0)
    module = nn.Linear(6, 7)
    client = LocalClient(module, layout_of(module), torch.device("cpu"))
    row, gradients = client.parameters, client.gradients
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
