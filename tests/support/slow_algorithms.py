"""Every algorithm and case study the slow, obvious way. The oracle of test_algorithms.py.

Copied modules, torch.optim.SGD, Python loops, the whole similarity matrix A, the whole history of
cohorts. Shares nothing with the simulator but the base model and the random streams of the
specification.
"""

import copy
import math
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from slow_fedavg import average, normalised
from torch import nn

from c2v_sim.models import build_model


class SlowModel(nn.Module):
    """body, MOON's head, g, and P and g_P of case study iii, drawn in this order."""

    def __init__(self, base, classes, head, index_width):
        super().__init__()
        self.body, self.head, self.P, self.g_P = base, None, None, None
        width = base.classifier.in_features
        if head:
            self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 256))
            self.g = nn.Linear(256, classes)
            width = 256
        else:
            self.g = base.classifier
        setattr(base, "fc" if hasattr(base, "fc") else "classifier", nn.Identity())
        if index_width:
            width_p = index_width(self.g) if callable(index_width) else index_width
            self.P = nn.Linear(width, width_p, bias=False)
            self.g_P = nn.Linear(width_p, classes)

    def z(self, x):
        z = self.body.features(x)
        return z if self.head is None else self.head(z)

    def forward(self, x):
        return self.g(self.z(x))


@dataclass
class Slow:
    """All that a run consists of; the tests read the model and what follows."""

    federation: object
    config: object
    feature: torch.Tensor | None  # [M, D]
    label: torch.Tensor | None  # [M, D']
    model: SlowModel = None
    h: dict = field(default_factory=dict)  # client -> one tensor a parameter
    previous: dict = field(default_factory=dict)  # client -> module
    cohorts: list = field(default_factory=list)
    weights: list = field(default_factory=list)
    velocity: list | None = None
    mean_gradient: list | None = None
    control: list | None = None  # SCAFFOLD's c, one tensor a parameter
    controls: dict = field(default_factory=dict)  # client -> its c_i
    moments: tuple | None = None  # m and v of the server's optimiser
    norms: dict = field(default_factory=dict)  # client -> its batch norm, by name
    members: list | None = None  # the clients that share the model; None: all
    everyone: list | None = None  # the cohorts that steer, where `cohorts` are a cluster's alone

    @property
    def own_sizes(self):
        return self.sizes if self.members is None else self.sizes[self.members]

    @property
    def steering(self):
        return self.cohorts if self.everyone is None else self.everyone

    @property
    def sizes(self):
        return np.array([len(ids) for ids in self.federation.partition.train])

    @property
    def cohort_size(self):
        return max(1, math.floor(self.config.participation * len(self.sizes) + 1e-9))


def run(federation, config, feature=None, label=None, base=None):
    """config.rounds rounds; `feature` and `label` are the parts of the index that A consists of.

    `local` are case study iii's: form, direction, orth_weight, dist_weight.
    """
    slow = Slow(federation, config, feature, label)
    slow.model = first_model(slow, base)
    for t in range(1, config.rounds + 1):
        one_round(slow, t)
    return slow


def first_model(slow, base):
    config, dataset = slow.config, slow.federation.dataset
    index_width = None
    if "local" in config.improve:
        index_width = slow.feature.shape[1] if slow.feature is not None else parameters_in
    shape = tuple(dataset.x_train.shape[1:])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        base = copy.deepcopy(base) or build_model(
            config.model, classes=dataset.classes, input_shape=shape, norm=config.norm, seed=None
        )
        return SlowModel(base, dataset.classes, config.algorithm == "moon", index_width)


def parameters_in(module):
    return sum(p.numel() for p in module.parameters())


def one_round(slow, t, cohort=None):
    config, old = slow.config, slow.model
    cohort = cohort or choose(slow, t)
    slow.cohorts.append(cohort)
    if config.algorithm == "fediir":
        refresh_mean_gradient(slow, cohort)
    trained = [train_client(slow, t, i) for i in cohort]
    p = cohort_weights(slow, t)
    slow.weights.append(p)
    if config.algorithm == "feddyn":
        for i, model in zip(cohort, trained, strict=True):
            moved = [a.detach() - b.detach() for a, b in both(model, old)]
            h = slow.h.get(i, [torch.zeros_like(m) for m in moved])
            slow.h[i] = [x + m for x, m in zip(h, moved, strict=True)]
    if config.algorithm == "scaffold":
        renew_controls(slow, cohort, trained)
    slow.previous |= dict(zip(cohort, trained, strict=True))
    slow.norms |= {i: batch_norms(model) for i, model in zip(cohort, trained, strict=True)}
    slow.model = copy.deepcopy(old)
    slow.model.load_state_dict(average(trained, p))
    if config.algorithm == "fednova":
        normalise_steps(slow, old, cohort, trained, p)
    if config.algorithm in ("fedadagrad", "fedyogi", "fedadam"):
        adapt(slow, old)
    with torch.no_grad():
        for number, (new, before) in enumerate(both(slow.model, old)):
            if config.algorithm == "fedavgm":
                if slow.velocity is None:
                    slow.velocity = [torch.zeros_like(w) for w in old.parameters()]
                v = slow.velocity[number]
                v.copy_(config.server_momentum * v + (before - new))
                new.copy_(before - v)
            if config.algorithm == "feddyn":
                new.add_(sum(h[number] for h in slow.h.values()) / len(slow.own_sizes))


def steps_of(slow, i):
    """What the local steps of client i add up to: a velocity that gradients of 1 push."""
    own = slow.federation.partition.train[i]
    velocity = total = 0.0
    for _ in range(slow.config.local_epochs * len(list(batches(slow, own)))):
        velocity = slow.config.momentum * velocity + 1.0
        total += velocity
    return total


def renew_controls(slow, cohort, trained):
    """SCAFFOLD: c_i = c_i - c + (w - theta_i) / (lr steps), and c the mean of all."""
    zeros = [torch.zeros_like(w) for w in slow.model.parameters()]
    c = slow.control or zeros
    for i, model in zip(cohort, trained, strict=True):
        old, far = slow.controls.get(i, zeros), slow.config.lr * steps_of(slow, i)
        pairs = zip(old, c, both(slow.model, model), strict=True)
        slow.controls[i] = [(a - b + (w - theta) / far).detach() for a, b, (w, theta) in pairs]
    everybody = zip(*slow.controls.values(), strict=True)
    slow.control = [sum(parts) / len(slow.own_sizes) for parts in everybody]


def normalise_steps(slow, old, cohort, trained, p):
    """FedNova, in float64: w - tau sum_i p_i (w - theta_i) / steps_i."""
    steps = [steps_of(slow, i) for i in cohort]
    tau = sum(a * b for a, b in zip(p, steps, strict=True))
    with torch.no_grad():
        for number, w in enumerate(old.parameters()):
            ends = [list(model.parameters())[number].double() for model in trained]
            moved = sum(q * (w.double() - e) / n for q, e, n in zip(p, ends, steps, strict=True))
            list(slow.model.parameters())[number].copy_(w.double() - tau * moved)


def adapt(slow, old):
    """The server's optimisers of Reddi et al., in float64 and for one parameter after another."""
    config = slow.config
    if slow.moments is None:
        first = [torch.zeros_like(w, dtype=torch.float64) for w in old.parameters()]
        slow.moments = first, [torch.full_like(m, config.server_tau**2) for m in first]
    with torch.no_grad():
        for m, v, (new, w) in zip(*slow.moments, both(slow.model, old), strict=True):
            delta = new.double() - w.double()
            m.copy_(config.server_beta1 * m + (1 - config.server_beta1) * delta)
            rate = 1 - config.server_beta2
            v += {
                "fedadagrad": delta**2,
                "fedyogi": -rate * delta**2 * torch.sign(v - delta**2),
                "fedadam": rate * (delta**2 - v),
            }[config.algorithm]
            new.copy_(w + config.server_lr * m / (v.sqrt() + config.server_tau))


def batch_norms(model):
    """The state of the batch-norm layers but the counts, by name."""
    state = model.state_dict()
    names = [n for n, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)]
    parts = ("weight", "bias", "running_mean", "running_var")
    return {f"{n}.{part}": state[f"{n}.{part}"].clone() for n in names for part in parts}


def own_model(slow, i):
    """The model that client i starts from, and is tested by."""
    model = copy.deepcopy(slow.model)
    if slow.config.algorithm == "fedbn":
        model.load_state_dict(slow.norms.get(i, {}), strict=False)
    return model


def both(one, other):
    return zip(one.parameters(), other.parameters(), strict=True)


# Case studies i and ii


def choose(slow, t):
    """The cohort of round t."""
    config, clients, k = slow.config, len(slow.sizes), slow.cohort_size
    noise = np.random.default_rng([config.seed, 2, t]).gumbel(size=clients)
    if "sampling" not in config.improve:
        logs = np.log(slow.sizes) if config.sampling == "size" else np.zeros(clients)
        return sorted(sorted(range(clients), key=lambda i: -(logs[i] + noise[i]))[:k])
    rest = clients // (2 * k)
    scores = similarity_to(slow, slow.cohorts[-1]) if t > 1 else np.zeros(clients)
    last = {i: max((r for r in range(1, t) if i in slow.cohorts[r - 1]), default=-math.inf)
            for i in range(clients)}  # fmt: skip
    eligible = [i for i in range(clients) if t - last[i] > rest]
    assert len(eligible) >= k  # with a constant k nobody needs to be called back
    tau = config.tau or 1.0
    return sorted(sorted(eligible, key=lambda i: -(scores[i] / tau + noise[i]))[:k])


def similarity_matrix(slow):
    parts = [part for part in (slow.feature, slow.label) if part is not None]
    clients = len(slow.sizes)
    A = np.zeros((clients, clients))
    for part in parts:
        rows = part.double().numpy()
        for i in range(clients):
            for j in range(clients):
                lengths = np.linalg.norm(rows[i]) * np.linalg.norm(rows[j])
                A[i, j] += rows[i] @ rows[j] / max(lengths, 1e-8) / len(parts)
    return A


def similarity_to(slow, cohort):
    """s = A omega."""
    omega = np.zeros(len(slow.sizes))
    omega[cohort] = slow.sizes[cohort] / slow.sizes[cohort].sum()
    return similarity_matrix(slow) @ omega


def cohort_weights(slow, t):
    config, cohort = slow.config, slow.cohorts[-1]
    alike = config.algorithm in ("feddyn", "scaffold")
    prior = np.ones(len(cohort)) if alike else slow.sizes[cohort]
    if "aggregation" in config.improve:
        history = sum(
            config.gamma ** (t - r) * similarity_to(slow, slow.steering[r - 1])[cohort]
            for r in range(1, t + 1)
        )
        prior = prior * np.exp(history / config.lambda1)
    return prior / prior.sum()


# Local training


def batches(slow, ids):
    """The ids of each batch; a last batch of one is dropped."""
    size = slow.config.batch_size
    for start in range(0, len(ids), size):
        batch = ids[start : start + size]
        if len(batch) > 1 or len(ids) == 1 or size == 1:
            yield batch


def samples(slow, batch):
    dataset = slow.federation.dataset
    return normalised(dataset.x_train[batch], dataset.mean, dataset.std), dataset.y_train[batch]


def train_client(slow, t, i):
    """The client's model after its local epochs."""
    config, ids = slow.config, slow.federation.partition.train[i]
    model = own_model(slow, i).train()
    decay = config.weight_decay
    if config.algorithm == "feddyn":
        decay += own_alpha(slow, i)
    optimiser = torch.optim.SGD(
        model.parameters(), lr=config.lr, momentum=config.momentum, weight_decay=decay
    )
    order = np.random.default_rng([config.seed, 3, t, i])
    for _ in range(config.local_epochs):
        for batch in batches(slow, ids[order.permutation(len(ids))]):
            optimiser.zero_grad()
            local_loss(slow, model, i, *samples(slow, batch)).backward()
            if config.algorithm == "scaffold" and slow.control:
                own = slow.controls.get(i, [0.0] * len(slow.control))
                for parameter, c, c_i in zip(model.parameters(), slow.control, own, strict=True):
                    parameter.grad += c - c_i
            if config.algorithm == "feddyn":
                torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
            optimiser.step()
    return model


def own_alpha(slow, i):
    return slow.config.feddyn_alpha * slow.own_sizes.mean() / slow.sizes[i]


def local_loss(slow, model, i, x, y):
    config = slow.config
    z = model.z(x)
    logits = model.g(z)
    extra = {"moon": contrast, "feddyn": linear_term, "fedprox": spring, "fediir": invariance}
    if config.algorithm == "fedlc":
        loss = F.cross_entropy(logits - calibration(slow, i), y)
    else:
        loss = F.cross_entropy(logits, y)
    if config.algorithm in extra:
        loss = loss + extra[config.algorithm](slow, model, i, x, z, loss)
    if "local" in config.improve:
        loss = loss + regulariser(slow, model, z, logits)
    return loss


def linear_term(slow, model, i, x, z, loss):
    total = 0.0
    for number, (theta, w) in enumerate(both(model, slow.model)):
        h = slow.h[i][number] if i in slow.h else 0.0
        total = total + (theta * (h - w.detach())).sum()
    return own_alpha(slow, i) * total


def spring(slow, model, i, x, z, loss):
    squares = [(theta - w.detach()).square().sum() for theta, w in both(model, slow.model)]
    return slow.config.fedprox_mu / 2 * sum(squares)


def contrast(slow, model, i, x, z, loss):
    if i not in slow.previous:
        return 0.0
    with torch.no_grad():
        of_global, of_previous = (
            copy.deepcopy(m).eval().z(x) for m in (slow.model, slow.previous[i])
        )
    total = 0.0
    for r, r_global, r_previous in zip(z, of_global, of_previous, strict=True):
        like, unlike = (cosine(r, b) / slow.config.moon_temperature for b in (r_global, r_previous))
        total = total + (like.exp() + unlike.exp()).log() - like
    return slow.config.moon_mu * total / len(z)


def calibration(slow, i):
    labels = slow.federation.dataset.y_train[slow.federation.partition.train[i]].tolist()
    classes = slow.federation.dataset.classes
    counts = [max(labels.count(c), 1e-8) for c in range(classes)]
    return torch.tensor([slow.config.fedlc_tau * n**-0.25 for n in counts])


def invariance(slow, model, i, x, z, loss):
    gradients = torch.autograd.grad(loss, list(model.g.parameters()), create_graph=True)
    pairs = zip(gradients, slow.mean_gradient, strict=True)
    return slow.config.fediir_penalty * sum((g - m).square().sum() for g, m in pairs)


def refresh_mean_gradient(slow, cohort):
    model, e = copy.deepcopy(slow.model).eval(), slow.config.fediir_ema
    parameters = list(model.g.parameters())
    found = []
    for i in cohort:
        for batch in batches(slow, slow.federation.partition.train[i]):
            x, y = samples(slow, batch)
            found.append(torch.autograd.grad(F.cross_entropy(model(x), y), parameters))
    means = [torch.stack(each).mean(0) for each in zip(*found, strict=True)]
    old = slow.mean_gradient or [torch.zeros_like(m) for m in means]
    slow.mean_gradient = [e * a + (1 - e) * b for a, b in zip(old, means, strict=True)]


# Case study iii


def regulariser(slow, model, z, logits):
    config, z_p = slow.config, model.P(z)
    both = config.regulariser_weight
    orth_weight = config.local_orth_weight if config.local_orth_weight >= 0 else both
    dist_weight = config.local_dist_weight if config.local_dist_weight >= 0 else both
    index = slow.feature
    if config.index == "local-model-weights":
        index = [classifier_of(slow.previous[i]) for i in sorted(slow.previous)]
    logits = logits.detach() if config.dist_detach else logits
    loss = dist_weight * divergence(config.dist_direction, logits, model.g_P(z_p))
    if len(index) and not config.omit_local_orth:
        loss = loss + orth_weight * orthogonality(config.local_orth, z_p, index)
    return loss


def divergence(direction, logits, logits_p):
    """KL(p || q), p the prediction from z, q that from z_P; or the reverse."""
    p, q = logits.softmax(1), logits_p.softmax(1)
    if direction == "reverse":
        p, q = q, p
    return (p * (p.log() - q.log())).sum(1).mean()


def orthogonality(form, z_p, index):
    """The mean over all rows of z_P and all clients."""
    pair = {
        "unit": lambda z, beta: z @ beta / (beta @ beta).sqrt() if beta.any() else z @ beta,
        "raw": lambda z, beta: z @ beta,
        "cosine": cosine,
    }[form]
    terms = [pair(row, beta).abs() for row in z_p for beta in index]
    return sum(terms) / len(terms)


def classifier_of(model):
    return torch.cat([p.detach().flatten() for p in model.g.parameters()])


def cosine(a, b):
    """0 without a gradient if one of the vectors is zero."""
    lengths = (a @ a).sqrt() * (b @ b).sqrt() if a.any() and b.any() else torch.tensor(0.0)
    return a @ b / max(lengths, torch.tensor(1e-8)) if lengths > 0 else torch.tensor(0.0)
