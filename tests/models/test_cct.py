"""CCT-7/3x1 against its formulas in plain tensor operations, and its attention against autograd."""

import math

import pytest
import torch
import torch.nn.functional as F

from c2v_sim.models import build_model
from c2v_sim.models.attention import _kept, attention


def cct(shape=(12, 10, 3), **options):
    return build_model("cct", **{"classes": 5, "input_shape": shape, "seed": 0, **options})


def images(batch=3):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, 3, 12, 10, generator=generator, dtype=torch.float64)


def reference(state, x):  # [B, 3, H, W] -> [B, K]
    def linear(name, x):
        bias = state.get(f"{name}.bias")
        out = torch.einsum("btc,dc->btd", x, state[f"{name}.weight"])
        return out if bias is None else out + bias

    def layer_norm(name, x):
        x = x - x.mean(-1, keepdim=True)
        x = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return x * state[f"{name}.weight"] + state[f"{name}.bias"]

    def self_attention(name, s):
        q, k, v = linear(f"{name}.qkv", s).split(256, dim=-1)
        heads = []
        for h in range(4):
            part = slice(64 * h, 64 * (h + 1))
            scores = q[..., part] @ k[..., part].mT / math.sqrt(64)
            exponentials = scores.exp()
            heads.append(exponentials / exponentials.sum(-1, keepdim=True) @ v[..., part])
        return linear(f"{name}.proj", torch.cat(heads, dim=-1))

    x = F.conv2d(x, state["tokenizer.0.weight"], padding=1).clamp(min=0)
    x = F.max_pool2d(x, 3, stride=2, padding=1)
    s = torch.einsum("bchw->bhwc", x).reshape(len(x), -1, 256) + state["positions"]
    for block in range(7):
        name = f"blocks.{block}"
        s = s + self_attention(f"{name}.attention", layer_norm(f"{name}.norm1", s))
        s = layer_norm(f"{name}.norm2", s)
        inner = linear(f"{name}.mlp.0", s)
        inner = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
        s = s + linear(f"{name}.mlp.2", inner)
    s = layer_norm("norm", s)
    share = linear("pool", s).exp()
    z = (share / share.sum(1, keepdim=True) * s).sum(1)
    return z @ state["classifier.weight"].T + state["classifier.bias"]


@pytest.mark.parametrize("training", [True, False])
def test_outputs_and_gradients_equal_the_formulas(training):
    model = cct().double().train(training)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():  # scales, shifts and biases as well
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.1 * noise)
    for module in model.modules():
        if hasattr(module, "p"):
            module.p = 0.0
    state = {k: v.detach().clone().requires_grad_() for k, v in model.state_dict().items()}
    got, expected = model(images()), reference(state, images())
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
    got.square().sum().backward()
    expected.square().sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, state[name].grad, rtol=1e-7, atol=1e-7, msg=name)


def test_initialisation_and_drop_rates():
    model = cct(shape=(64, 64, 3))
    positions = model.positions.detach()
    assert positions.shape == (1, 1024, 256)
    assert positions.std().item() == pytest.approx(0.2, rel=0.02)
    assert positions.abs().max() <= 2.0
    linear = model.blocks[3].mlp[0]
    assert linear.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert not linear.bias.any()
    conv = model.tokenizer[0].weight
    assert conv.std().item() == pytest.approx(math.sqrt(2 / 27), rel=0.05)
    depths = [block.drop_path.p for block in model.blocks]
    assert depths == pytest.approx([0.1 * k / 6 for k in range(7)])
    assert {block.attention.dropout.p for block in model.blocks} == {0.1}


def qkv(tokens=7, batch=5, dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)
    shape = (batch, 2, tokens, 4)
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for _ in "qkv"]


def naive(q, k, v, kept, p):
    weights = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), dim=-1)
    return weights * kept / (1 - p) @ v


@pytest.mark.parametrize("on_the_host", [True, False])
@pytest.mark.parametrize("elements", [1, 2 * 7 * 7 * 2, 1 << 22])  # samples at once: 1, 2, all
def test_dropped_attention_and_its_gradients_equal_autograds(elements, on_the_host, monkeypatch):
    monkeypatch.setattr("c2v_sim.models.attention.ELEMENTS", elements)
    monkeypatch.setattr("c2v_sim.models.attention.on_the_host", lambda q: on_the_host)
    inputs = qkv()
    generator = torch.Generator().manual_seed(4)
    seed = torch.randint(1 << 62, (), generator=torch.Generator().manual_seed(4))
    seed = int(seed) if on_the_host else seed
    step = max(1, elements // (2 * 7 * 7))
    whole = torch.empty(5, 2, 7, 7)
    parts = enumerate(whole.split(step))
    kept = torch.cat([_kept(w, 16384, seed, step * i) for i, w in parts])
    got = attention(*inputs, 0.25, generator)
    expected = naive(*inputs, kept, 0.25)
    torch.testing.assert_close(got, expected)
    weight = torch.randn(got.shape, dtype=got.dtype, generator=generator)
    for a, b in zip(
        torch.autograd.grad((got * weight).sum(), inputs),
        torch.autograd.grad((expected * weight).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_the_gradient_is_that_of_finite_differences():
    def with_fixed_seed(*inputs):
        return attention(*inputs, 0.3, torch.Generator().manual_seed(0))

    assert torch.autograd.gradcheck(with_fixed_seed, qkv(tokens=3, batch=2))


def test_weights_are_dropped_at_their_rate_and_nothing_without_dropout():
    for seed in (9, torch.tensor(9)):  # of the host, of the device
        kept = _kept(torch.empty(64, 4, 64, 64), 6554, seed, 0)
        assert kept.float().mean().item() == pytest.approx(0.9, abs=0.001)
        assert not torch.equal(kept[0], kept[1])
    plain = naive(*qkv(), 1.0, 0.0)
    torch.testing.assert_close(attention(*qkv()), plain)


def test_training_draws_from_the_given_generator_only():
    model = cct().train()
    x = images().float()

    def output(seed):
        generator = torch.Generator().manual_seed(seed)
        for module in model.modules():
            if hasattr(module, "generator"):
                module.generator = generator
        return model(x)

    before = torch.get_rng_state()
    first, again, other = output(0), output(0), output(1)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(model.eval()(x), model(x))
