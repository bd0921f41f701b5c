"""Models of the clients' own the slow, obvious way: the oracle of test_personal.py.

Each gives the global model, one model per client by which it is tested, and for clients of a given
similarity to all others what they would be given.
"""

import copy

import numpy as np
import slow_algorithms as slow
import torch
import torch.nn.functional as F
from slow_fedavg import average, cohort_of


def steps(one, t, i, epochs):
    """The batches of client i in round t."""
    ids = one.federation.partition.train[i]
    order = np.random.default_rng([one.config.seed, 3, t, i])
    for _ in range(epochs):
        yield from slow.batches(one, ids[order.permutation(len(ids))])


def descended(one, model, t, i, epochs, change=lambda model, number: None):
    """`model` after local SGD; `change` may change the gradients of step `number`."""
    config = one.config
    model = copy.deepcopy(model).train()
    facts = {"lr": config.lr, "momentum": config.momentum, "weight_decay": config.weight_decay}
    optimiser = torch.optim.SGD(model.parameters(), **facts)
    for number, batch in enumerate(steps(one, t, i, epochs)):
        optimiser.zero_grad()
        x, y = slow.samples(one, batch)
        F.cross_entropy(model(x), y).backward()
        change(model, number)
        optimiser.step()
    return model


def averaged(one, cohort, ends):
    sizes = one.sizes[cohort]
    out = copy.deepcopy(one.model)
    out.load_state_dict(average(ends, sizes / sizes.sum()))
    return out


def begin(federation, config, base):
    one = slow.Slow(federation, config, None, None)
    one.model = slow.first_model(one, base)
    return one, range(1, config.rounds + 1), federation.partition.clients


def with_head(model, head):
    out = copy.deepcopy(model)
    out.g.load_state_dict(head)
    return out


def fedrep(federation, config, base):
    one, rounds, clients = begin(federation, config, base)
    heads = {}
    for t in rounds:
        cohort, ends = cohort_of(config, clients, t), []
        for i in cohort:
            count = len(list(steps(one, t, i, config.local_epochs)))

            until = round(config.fedrep_head * count)

            def change(model, number, until=until):
                head = {id(p) for p in model.g.parameters()}
                for p in model.parameters():
                    if (id(p) in head) != (number < until):
                        p.grad.zero_()

            start = with_head(one.model, heads[i]) if i in heads else one.model
            ends.append(descended(one, start, t, i, config.local_epochs, change))
        heads |= {i: copy.deepcopy(e.g.state_dict()) for i, e in zip(cohort, ends, strict=True)}
        one.model = averaged(one, cohort, ends)
    own = [with_head(one.model, heads[i]) if i in heads else one.model for i in range(clients)]
    return one.model, own


def ditto(federation, config, base):
    one, rounds, clients = begin(federation, config, base)
    own = {}
    for t in rounds:
        cohort, ends = cohort_of(config, clients, t), []
        for i in cohort:
            ends.append(descended(one, one.model, t, i, config.local_epochs))

            def pull(model, number, w=one.model):
                for p, q in slow.both(model, w):
                    p.grad += config.ditto_lambda * (p - q).detach()

            own[i] = descended(one, own.get(i, one.model), t, i, config.local_epochs, pull)
        one.model = averaged(one, cohort, ends)
    return one.model, [own.get(i, one.model) for i in range(clients)]


def pfedme(federation, config, base):
    one, rounds, clients = begin(federation, config, base)
    facts = {"lr": config.lr, "momentum": config.momentum, "weight_decay": config.weight_decay}
    far, own = config.pfedme_lambda, {}
    for t in rounds:
        cohort, ends, old = cohort_of(config, clients, t), [], one.model
        for i in cohort:
            w, theta = copy.deepcopy(old), copy.deepcopy(old).train()
            optimiser = torch.optim.SGD(theta.parameters(), **facts)
            for batch in steps(one, t, i, config.local_epochs):
                x, y = slow.samples(one, batch)
                for _ in range(config.pfedme_steps):
                    optimiser.zero_grad()
                    pulls = [((p - q.detach()) ** 2).sum() for p, q in slow.both(theta, w)]
                    (F.cross_entropy(theta(x), y) + far / 2 * sum(pulls)).backward()
                    optimiser.step()
                with torch.no_grad():
                    for p, q in slow.both(theta, w):
                        q.copy_(q - config.pfedme_eta * far * (q - p))
            own[i] = theta
            ends.append(w)
        one.model = averaged(one, cohort, ends)
        with torch.no_grad():
            for p, q in slow.both(one.model, old):
                p.copy_((1 - config.pfedme_beta) * q + config.pfedme_beta * p)
    return one.model, [own.get(i, one.model) for i in range(clients)]


def fedproto(federation, config, base):
    one, rounds, clients = begin(federation, config, base)
    facts = {"lr": config.lr, "momentum": config.momentum, "weight_decay": config.weight_decay}
    own, prototypes = {}, {}
    for t in rounds:
        cohort, sums, counts = cohort_of(config, clients, t), {}, {}
        for i in cohort:
            own[i] = model = copy.deepcopy(own.get(i, one.model)).train()
            optimiser = torch.optim.SGD(model.parameters(), **facts)
            for batch in steps(one, t, i, config.local_epochs):
                optimiser.zero_grad()
                x, y = slow.samples(one, batch)
                z, far = model.z(x), 0.0
                for row, label in zip(z, y.tolist(), strict=True):
                    if label in prototypes:
                        far = far + ((row - prototypes[label]) ** 2).mean() / len(y)
                (F.cross_entropy(model.g(z), y) + config.fedproto_lambda * far).backward()
                optimiser.step()
            model.eval()
            x, y = slow.samples(one, federation.partition.train[i])
            for row, label in zip(model.z(x).detach(), y.tolist(), strict=True):
                sums[label] = sums.get(label, 0) + row
                counts[label] = counts.get(label, 0) + 1
        prototypes |= {label: sums[label] / counts[label] for label in sums}
    return one.model, [own.get(i, one.model) for i in range(clients)]


def fine_tuning(federation, config, base):
    one, rounds, clients = begin(federation, config, base)
    for t in rounds:
        cohort = cohort_of(config, clients, t)
        ends = [descended(one, one.model, t, i, config.local_epochs) for i in cohort]
        one.model = averaged(one, cohort, ends)
    tuned = [descended(one, one.model, 0, i, config.tuning_epochs) for i in range(clients)]
    return one.model, tuned


def mixture(federation, config, base, similarity):
    """`similarity` [n, M]: of those whose models are wanted to all clients."""
    one, rounds, clients = begin(federation, config, base)
    changes = {}
    for t in rounds:
        cohort = cohort_of(config, clients, t)
        ends = [descended(one, one.model, t, i, config.local_epochs) for i in cohort]
        for i, end in zip(cohort, ends, strict=True):
            pairs = zip(end.g.parameters(), one.model.g.parameters(), strict=True)
            changes[i] = [(a - b).detach() for a, b in pairs]
        one.model = averaged(one, cohort, ends)
    own = []
    for row in similarity:
        weights = {j: one.sizes[j] * np.exp(row[j] / config.personal_temperature) for j in changes}
        model = copy.deepcopy(one.model)
        with torch.no_grad():
            for number, p in enumerate(model.g.parameters()):
                parts = [weights[j] * changes[j][number] for j in changes]
                p.add_(sum(parts) / sum(weights.values()))
        own.append(model)
    return one.model, own
