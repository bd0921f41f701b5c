"""Whatever a module draws in training comes from its client's generator."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from c2v_sim.models.draws import OwnDraws, draws_by_itself, mark_draws
from c2v_sim.models.split import split

X = torch.randn(2, 8, generator=torch.Generator().manual_seed(0))


def attention(x):
    x = x.view(1, 1, *x.shape)
    return F.scaled_dot_product_attention(x, x, x, dropout_p=0.5)[0, 0]


def path_and_attention(x):
    """Attention without dropout takes no generator, and needs none."""
    y = x.view(1, 1, *x.shape)
    return F.scaled_dot_product_attention(y, y, y)[0, 0] * torch.rand(())


DRAWS = {
    "a path beside attention": path_and_attention,
    "dropout": lambda x: F.dropout(x, 0.5),
    "attention": attention,
    "a path": lambda x: x * x.new_empty(2, 1).bernoulli_(0.5),
    "rand": lambda x: x * torch.rand(()) + torch.rand_like(x) + torch.randint(1, 9, (8,)),
    "noise": lambda x: x + torch.randn_like(x) + torch.normal(0.0, 1.0, (8,)),
    "order": lambda x: x[:, torch.randperm(8)],
}


@pytest.mark.parametrize("name", DRAWS)
def test_the_same_generator_gives_the_same_numbers(name):
    outs, before = [], torch.get_rng_state()
    for seed in (1, 1, 2):
        x = X.clone().requires_grad_()
        with OwnDraws(torch.Generator().manual_seed(seed)):
            out = DRAWS[name](x)
        out.sum().backward()
        assert x.grad is not None
        outs.append(out.detach())
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])
    assert torch.equal(torch.get_rng_state(), before)  # torch's own was not used


class Net(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.draw, self.drop, self.fc = draw, nn.Dropout(0.5), nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(self.drop(self.draw(x) if self.training else x))


def test_only_what_draws_by_itself_is_marked():
    for draw, marked in ((lambda x: x, False), (DRAWS["dropout"], True)):
        model, before = split(Net(draw), X), torch.get_rng_state()
        mark_draws(model, X)
        assert draws_by_itself(model) is marked
        assert torch.equal(torch.get_rng_state(), before)


def test_a_draw_that_takes_no_generator_is_refused():
    with (
        OwnDraws(torch.Generator()),
        pytest.raises(RuntimeError, match=r"by aten.native_dropout.*takes no generator"),
    ):
        torch.native_dropout(X, 0.5, True)
