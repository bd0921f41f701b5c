"""The LSTM against its textbook formulas, and its life inside the arena."""

import copy
import warnings

import numpy as np
import pytest
import torch

from c2v_sim.models import build_model
from c2v_sim.training.arena import Arena, BoundModule, layout_of


def lstm(seed=0):
    return build_model("lstm", classes=80, input_shape=(80,), seed=seed)


def text(batch=4, length=12, seed=0):
    return torch.randint(80, (batch, length), generator=torch.Generator().manual_seed(seed))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def layer_in_numpy(state, layer, inputs):  # [T, B, I] -> [T, B, 256]
    names = [f"lstm.{name}_l{layer}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    w_in, w_hidden, b_in, b_hidden = (state[name].double().numpy() for name in names)
    hidden = cell = np.zeros((inputs.shape[1], 256))
    outputs = []
    for x in inputs:
        gates = x @ w_in.T + b_in + hidden @ w_hidden.T + b_hidden
        enter, forget, new, leave = np.split(gates, 4, axis=1)
        cell = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(new)
        hidden = sigmoid(leave) * np.tanh(cell)
        outputs.append(hidden)
    return np.stack(outputs)


def test_features_and_logits_equal_the_formulas():
    model, x = lstm(), text()
    state = model.state_dict()
    inputs = state["embedding.weight"].double().numpy()[x.numpy()].swapaxes(0, 1)
    z = layer_in_numpy(state, 1, layer_in_numpy(state, 0, inputs))[-1]
    expected = z @ state["classifier.weight"].double().numpy().T
    expected += state["classifier.bias"].double().numpy()
    with torch.no_grad():
        np.testing.assert_allclose(model.features(x).numpy(), z, atol=1e-6)
        np.testing.assert_allclose(model(x).numpy(), expected, atol=1e-6)


def test_bytes_are_characters_too_and_floats_are_refused():
    model = lstm()
    assert torch.equal(model(text()), model(text().to(torch.uint8)))
    with pytest.raises(TypeError, match=r"integers 0\.\.79, got torch.float32"):
        model(text().float())


def test_forward_and_gradients_use_the_arena():
    """nn.LSTM keeps a list of its weights beside its attributes: both must be the row's views."""
    model, other = lstm(0), lstm(1)
    layout = layout_of(model)
    arena = Arena(layout, 2)
    arena.read(model, 0)
    arena.read(other, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns of weights that it has to gather first
        bound = BoundModule(copy.deepcopy(model), layout, "cpu")
        for row, expected in enumerate((model, other)):
            bound.bind(arena.data[row], arena.integers[row])
            torch.testing.assert_close(bound.module(text()), expected(text()))
        bound.gradients.zero_()
        bound.module(text()).square().sum().backward()
    other(text()).square().sum().backward()
    for slot, parameter in zip(layout.parameters, other.parameters(), strict=True):
        assert parameter.grad.abs().sum() > 0
        torch.testing.assert_close(slot.view(bound.gradients), parameter.grad, msg=slot.name)
    arena.data[1].zero_()
    assert not bound.module(text()).any()  # nothing but the row is read
