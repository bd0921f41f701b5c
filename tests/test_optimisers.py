import pytest
import torch

from c2v_sim.optimisers import Adam, Sgd


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
    row, gradients = torch.randn(50, generator=g), torch.zeros(50)
    state = torch.full((50,), float("nan"))
    for _ in range(2):  # the second participation must not see the first one's momentum
        step = ours.start(row, gradients, lambda name: state.zero_())
        plain = row.clone().requires_grad_()
        optimiser = theirs([plain])
        for _ in range(4):
            gradients.copy_(torch.randn(50, generator=g))
            plain.grad = gradients.clone()
            optimiser.step()
            step()
            torch.testing.assert_close(row, plain.detach())
            assert not gradients.any()
