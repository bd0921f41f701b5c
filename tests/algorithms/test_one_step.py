"""FedDyn, MOON and FedIIR on a linear model against arithmetic by hand, in float64 NumPy.

Two clients of 6 and 4 samples, one batch each, two rounds of one step: the second is the one in
which h, the previous model and G are no longer their beginnings.
"""

import numpy as np
import pytest
import torch

from c2v_sim import Federation, RunConfig, Simulator

LR, DECAY = 0.1, 0.01
SIZES = np.array([6, 4])


def federation():
    g = np.random.default_rng(7)
    owner = np.repeat([0, 1], SIZES)
    x = g.normal(size=(10, 5)).astype(np.float32)
    y = g.permutation(np.arange(10) % 3)
    return Federation.from_arrays(x, y, owner, x_test=x, y_test=y, client_ids_test=owner)


def simulated(**changes):
    """The simulator after two rounds, its first model, and each client's x and one-hot y."""
    f = federation()
    config = RunConfig(
        model="linear", rounds=2, participation=1.0, local_epochs=1, lr=LR, weight_decay=DECAY,
        seed=1, **changes,
    )  # fmt: skip
    simulator = Simulator(f, config)
    start = numbers(simulator.global_model())
    simulator.run()
    simulator.close()
    x, y = f.dataset.x_train.double().numpy(), np.eye(3)[f.dataset.y_train.numpy()]
    return simulator, start, [(x[ids], y[ids]) for ids in f.partition.train]


def numbers(state):
    return {name: tensor.double().numpy() for name, tensor in state.items()}


def softmax(logits):
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def flat(state):
    return np.concatenate([state["classifier.weight"].ravel(), state["classifier.bias"]])


def gradient(w, x, y):
    """Of the mean cross-entropy, w = [W (3 × 5); b (3)] flat."""
    error = softmax(x @ w[:15].reshape(3, 5).T + w[15:]) - y
    return np.concatenate([(error.T @ x).ravel(), error.sum(0)]) / len(x)


def hessian_times(w, x, v):
    """d gradient / d w · v: the softmax's Jacobian is diag(p) - p p^T."""
    p = softmax(x @ w[:15].reshape(3, 5).T + w[15:])
    change = x @ v[:15].reshape(3, 5).T + v[15:]
    change = p * (change - (p * change).sum(1, keepdims=True))
    return np.concatenate([(change.T @ x).ravel(), change.sum(0)]) / len(x)


@pytest.mark.parametrize("limit", [1e9, 0.3])
def test_feddyn(limit):
    a = 0.4
    simulator, start, clients = simulated(algorithm="feddyn", feddyn_alpha=a, max_grad_norm=limit)
    w, h = flat(start), np.zeros((2, 18))
    for _ in range(2):
        theta = []
        for i, (x, y) in enumerate(clients):
            a_i = a * 5 / SIZES[i]
            step = gradient(w, x, y) + a_i * (h[i] - w)
            step *= min(1.0, limit / (np.linalg.norm(step) + 1e-6))
            theta.append(w - LR * (step + (DECAY + a_i) * w))
        h += np.array(theta) - w
        w = np.mean(theta, axis=0) + h.sum(0) / 2
    assert flat(numbers(simulator.global_model())) == pytest.approx(w, abs=1e-6)
    h_sum = simulator.algorithm.h_sum
    spread = simulator.layout.spread(torch.from_numpy(h), len(h_sum)).numpy()
    for i in range(2):
        row = simulator.algorithm.h.read(i, h_sum.clone())
        assert row.numpy() == pytest.approx(spread[i], abs=1e-6)
    assert h_sum.numpy() == pytest.approx(spread.sum(0), abs=1e-6)


def test_fediir():
    penalty, e = 0.5, 0.6
    simulator, start, clients = simulated(algorithm="fediir", fediir_penalty=penalty, fediir_ema=e)
    w, mean = flat(start), np.zeros(18)
    for _ in range(2):
        own = [gradient(w, x, y) for x, y in clients]
        mean = e * mean + (1 - e) * (own[0] + own[1]) / 2  # by batches, not by samples
        theta = []
        for g, (x, _) in zip(own, clients, strict=True):
            step = g + 2 * penalty * hessian_times(w, x, g - mean)
            theta.append(w - LR * (step + DECAY * w))
        w = 0.6 * theta[0] + 0.4 * theta[1]
    assert flat(numbers(simulator.global_model())) == pytest.approx(w, abs=1e-6)
    assert simulator.algorithm.mean_gradient.numpy() == pytest.approx(mean, abs=1e-6)


def moon_forward(w, x):
    hidden = np.maximum(x @ w["head.0.weight"].T + w["head.0.bias"], 0)
    return hidden, hidden @ w["head.2.weight"].T + w["head.2.bias"]


def cosine_and_gradient(r, b):
    """cos(r, b) row by row and its derivative by r."""
    length, other = (np.linalg.norm(v, axis=1, keepdims=True) for v in (r, b))
    cos = (r * b).sum(1, keepdims=True) / (length * other)
    return cos, b / (length * other) - cos * r / length**2


def moon_gradient(w, x, y, previous, mu, temperature):
    hidden, r = moon_forward(w, x)
    error = (softmax(r @ w["classifier.weight"].T + w["classifier.bias"]) - y) / len(x)
    by_r = error @ w["classifier.weight"]
    if previous is not None:
        like, d_like = cosine_and_gradient(r, moon_forward(w, x)[1])  # a first step: still w
        unlike, d_unlike = cosine_and_gradient(r, moon_forward(previous, x)[1])
        p = softmax(np.hstack([like, unlike]) / temperature)
        pull = (p[:, :1] - 1) * d_like + p[:, 1:] * d_unlike
        by_r = by_r + mu / temperature * pull / len(x)
    by_hidden = (by_r @ w["head.2.weight"]) * (hidden > 0)
    return {
        "head.0.weight": by_hidden.T @ x,
        "head.0.bias": by_hidden.sum(0),
        "head.2.weight": by_r.T @ hidden,
        "head.2.bias": by_r.sum(0),
        "classifier.weight": error.T @ r,
        "classifier.bias": error.sum(0),
    }


def test_moon():
    mu, temperature = 2.0, 0.4
    simulator, w, clients = simulated(algorithm="moon", moon_mu=mu, moon_temperature=temperature)
    previous, contrasted = [None, None], []
    for _ in range(2):
        theta = []
        for (x, y), old in zip(clients, previous, strict=True):
            g = moon_gradient(w, x, y, old, mu, temperature)
            contrasted.append(
                g["head.0.weight"] - moon_gradient(w, x, y, None, 0, 1)["head.0.weight"]
            )
            theta.append({name: v - LR * (g[name] + DECAY * v) for name, v in w.items()})
        previous = theta
        w = {name: 0.6 * theta[0][name] + 0.4 * theta[1][name] for name in w}
    for name, tensor in numbers(simulator.global_model()).items():
        assert tensor == pytest.approx(w[name], abs=1e-6), name
    assert not contrasted[0].any()
    assert not contrasted[1].any()
    assert LR * abs(contrasted[2]).max() > 1e-4
    for i in range(2):
        row = simulator.algorithm.previous.read(i, simulator.server.data[0].clone())
        for slot in simulator.layout.parameters:
            assert slot.view(row).numpy() == pytest.approx(previous[i][slot.name], abs=1e-6)
