"""The index network: torch's encoder in numbers, the specification's in shape and losses."""

import pytest
import torch
from planted import planted
from torch import nn

from c2v_sim.index.dsa_ign import (
    LOSSES,
    EncoderLayer,
    IndexNetwork,
    build_network,
    drop,
    loss_weights,
    losses,
)
from c2v_sim.index.encoders.encoder import WIDTH
from c2v_sim.ops.index_losses import index_losses_torch
from c2v_sim.training.arena import layout_of


@pytest.fixture(scope="module")
def pairs():
    federation, images, labels = planted(clients_per_domain=1, samples=8)
    return images, labels[federation.dataset.y_train]


@pytest.mark.parametrize(("decoder", "parameters"), [("linear", 937_824), ("mlp", 1_987_936)])
def test_shapes_and_parameter_count(decoder, parameters):
    network = IndexNetwork(decoder=decoder)
    assert layout_of(network).parameter_count == parameters
    z, u, restored = network(torch.randn(3, WIDTH))
    assert z.shape == u.shape == restored.shape == (3, WIDTH)


def test_layers_compute_what_torchs_encoder_computes():
    """Weights of nn.TransformerEncoder are loaded by their own names."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 8, 128, 0.1, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).double()
    for parameter in encoder.parameters():  # torch begins with zero biases and equal layers
        nn.init.normal_(parameter, std=0.3)
    layers = nn.ModuleList(EncoderLayer(128, 0.1) for _ in range(3)).double()
    layers.load_state_dict(
        {name.removeprefix("layers."): t for name, t in encoder.state_dict().items()}
    )
    x = torch.randn(5, 32, 32, dtype=torch.float64)
    expected = encoder.eval()(x)
    for ours in layers.eval():
        x = ours(x)
    torch.testing.assert_close(x, expected)


def test_gradients_are_torchs():
    torch.manual_seed(0)
    theirs = nn.TransformerEncoderLayer(32, 8, 64, 0.0, batch_first=True).double()
    ours = EncoderLayer(64, 0.0).double()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(4, 32, 32, dtype=torch.float64)
    for layer in (theirs, ours):
        layer(x).square().sum().backward()
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(dict(ours.named_parameters())[name].grad, parameter.grad)


def test_encoding_and_index_differ(pairs):
    network = build_network("linear", 64, 0.0, seed=0)
    z, u, _ = network(pairs[0])
    assert torch.nn.functional.cosine_similarity(z, u).abs().max() < 0.9


def test_without_positions_they_would_be_equal(pairs):
    network = build_network("linear", 64, 0.0, seed=0)
    nn.init.zeros_(network.position)
    z, u, _ = network(pairs[0])
    torch.testing.assert_close(z, u)


def test_the_seed_decides_the_weights():
    first, again, other = (build_network("linear", 64, 0.1, seed=s).state_dict() for s in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["position"], other["position"])
    assert not torch.equal(first["layers.0.linear1.weight"], first["layers.1.linear1.weight"])


def test_dropout_follows_its_generator_and_eval_mode_has_none(pairs):
    network = build_network("linear", 64, 0.1, seed=0).train()

    def run(seed):
        for layer in network.layers:
            layer.generator = torch.Generator().manual_seed(seed)
        return network.encode(pairs[0])

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))
    network.eval()
    assert torch.equal(run(1), run(2))


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_drop_keeps_the_expected_share_and_the_mean(rate):
    x = torch.ones(1001, 333)
    out = drop(x, rate, torch.Generator().manual_seed(0))
    kept = out != 0
    assert kept.float().mean().item() == pytest.approx(1 - rate, abs=4e-3)
    torch.testing.assert_close(
        out[kept], torch.full((int(kept.sum()),), 1 / (1 - rate)), rtol=1e-4, atol=0
    )
    # Four elements share a draw: neighbours must not share their fate.
    both = (kept[:, 0::2][:, :166] & kept[:, 1::2]).float().mean().item()
    assert both == pytest.approx((1 - rate) ** 2, abs=6e-3)


def test_the_losses_are_the_specifications(pairs):
    network = build_network("linear", 64, 0.0, seed=0)
    d, label = pairs
    z, u, restored = network(d)
    sim, orth, div = index_losses_torch(z, u, label)[0]
    recon = (restored - d * 512**0.5).square().mean()
    torch.testing.assert_close(losses(network, d, label), torch.stack([sim, orth, recon, div]))


@pytest.mark.parametrize("omitted", LOSSES)
def test_a_loss_left_out_takes_its_gradient_with_it(pairs, omitted):
    """The gradient of the sum without one loss is the full gradient less that loss's own."""
    network = build_network("linear", 64, 0.0, seed=0)

    def gradient(weights):
        total = losses(network, *pairs) @ torch.tensor(weights)
        return torch.autograd.grad(total, network.layers[0].linear1.weight)[0]

    alone = [1.0 if name == omitted else 0.0 for name in LOSSES]
    without = gradient(loss_weights([omitted]))
    torch.testing.assert_close(without, gradient(loss_weights([])) - gradient(alone))
    assert (gradient(alone) != 0).any()


def test_without_reconstruction_the_decoder_is_not_trained(pairs):
    network = build_network("linear", 64, 0.0, seed=0)
    (losses(network, *pairs) @ torch.tensor(loss_weights(["recon"]))).backward()
    assert (network.decoder.weight.grad == 0).all()


def test_errors_name_what_is_wrong():
    with pytest.raises(ValueError, match=r"embeddings must be \[B, 512\], got \(2, 100\)"):
        IndexNetwork()(torch.zeros(2, 100))
    with pytest.raises(ValueError, match="decoder must be one of linear, mlp; got 'cnn'"):
        IndexNetwork(decoder="cnn")
    with pytest.raises(ValueError, match="dropout must be in"):
        IndexNetwork(dropout=1.0)
    with pytest.raises(ValueError, match="unknown loss 'l2'; known: sim, orth, recon, div"):
        loss_weights(["l2"])
    with pytest.raises(ValueError, match="all four"):
        loss_weights(LOSSES)
