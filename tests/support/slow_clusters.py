"""Several global models the slow, obvious way: the oracle of test_clusters.py.

A cluster is a slow run of its own (slow_algorithms.py) that is told its part of every cohort.
"""

import copy
import math

import numpy as np
import slow_algorithms as slow
import torch
import torch.nn.functional as F
from slow_fedavg import average, cohort_of, normalised


def evenly(config, assigned, k, t):
    """Every M/k-th of a line in which clusters stand one after another, each in random order."""
    draw, clients = np.random.default_rng([config.seed, 2, t]), len(assigned)
    keys = draw.random(clients)
    line = sorted(range(clients), key=lambda i: (assigned[i], keys[i]))
    begin = draw.random() * clients / k
    return sorted(line[math.floor(begin + j * clients / k)] for j in range(k))


def run(federation, config, assigned, feature, label, base):
    """The runs of the clusters, and the cohorts."""
    everyone, whole = [], slow.Slow(federation, config, feature, label)
    whole.cohorts = everyone
    clusters = []
    for number in range(max(assigned) + 1):
        members = [i for i, c in enumerate(assigned) if c == number]
        one = slow.Slow(federation, config, feature, label, members=members, everyone=everyone)
        one.model = slow.first_model(one, base)
        clusters.append(one)
    for t in range(1, config.rounds + 1):
        steered = "sampling" in config.improve
        k = whole.cohort_size
        cohort = slow.choose(whole, t) if steered else evenly(config, assigned, k, t)
        everyone.append(cohort)
        for one in clusters:
            if own := [i for i in cohort if i in one.members]:
                slow.one_round(one, t, own)
    return clusters, everyone


# IFCA


def loss_on(federation, model, i):
    dataset, ids = federation.dataset, federation.partition.train[i]
    x = normalised(dataset.x_train[ids], dataset.mean, dataset.std)
    with torch.no_grad():
        return F.cross_entropy(copy.deepcopy(model).eval()(x), dataset.y_train[ids]).item()


def best_model(federation, models, i):
    losses = [loss_on(federation, model, i) for model in models]
    return losses.index(min(losses))


def trained(federation, config, model, cohort, t):
    """What each of the cohort ends with, beginning at `model`."""
    one = slow.Slow(federation, config, None, None, model=model)
    return [slow.train_client(one, t, i) for i in cohort]


def averaged(federation, model, cohort, ends):
    sizes = federation.partition.sizes[cohort]
    new = copy.deepcopy(model)
    new.load_state_dict(average(ends, sizes / sizes.sum()))
    return new


def ifca(federation, config, base):
    """The models, and the choices of each round's cohort."""
    first = slow.first_model(slow.Slow(federation, config, None, None), base)
    models = [first]
    for number in range(1, config.ifca_models):
        draw, other = np.random.default_rng([config.seed, 11, number]), copy.deepcopy(first)
        with torch.no_grad():
            for p in other.parameters():
                noise = torch.from_numpy(draw.standard_normal(tuple(p.shape), np.float32))
                p.add_(0.1 * p.std(correction=0) * noise)
        models.append(other)
    choices = []
    for t in range(1, config.rounds + 1):
        cohort = cohort_of(config, federation.partition.clients, t)
        chosen = [best_model(federation, models, i) for i in cohort]
        choices.append(chosen)
        for number in set(chosen):
            own = [i for i, c in zip(cohort, chosen, strict=True) if c == number]
            ends = trained(federation, config, models[number], own, t)
            models[number] = averaged(federation, models[number], own, ends)
    return models, choices


# CFL


def cfl(federation, config, base):
    """The models, and the cluster of each client after each round."""
    models = [slow.first_model(slow.Slow(federation, config, None, None), base)]
    clients = federation.partition.clients
    of, updates, fresh, history = [0] * clients, {}, set(), []
    for t in range(1, config.rounds + 1):
        cohort = cohort_of(config, clients, t)
        for number in {of[i] for i in cohort}:
            own = [i for i in cohort if of[i] == number]
            ends = trained(federation, config, models[number], own, t)
            for i, end in zip(own, ends, strict=True):
                moved = [(a - b).detach().flatten() for a, b in slow.both(end, models[number])]
                updates[i] = torch.cat(moved).double()
            models[number] = averaged(federation, models[number], own, ends)
        fresh |= set(cohort)
        for number in range(len(models)):
            members = [i for i in range(clients) if of[i] == number]
            if len(members) < 2 or not set(members) <= fresh or len(models) == config.cfl_clusters:
                continue
            sizes = federation.partition.sizes[members]
            mean = sum(n / sizes.sum() * updates[i] for n, i in zip(sizes, members, strict=True))
            if mean.norm() / max(updates[i].norm() for i in members) < config.cfl_ratio:
                for i in second_group(members, updates):
                    of[i] = len(models)
                models.append(copy.deepcopy(models[number]))
                fresh -= set(members)
        history.append(list(of))
    return models, history


def second_group(members, updates):
    """Complete linkage: the two nearest groups are joined until two are left."""
    groups = [[i] for i in members]

    def angle(i, j):
        a, b = updates[i], updates[j]
        return math.acos(max(-1.0, min(1.0, float(a @ b / a.norm() / b.norm()))))

    while len(groups) > 2:
        pairs = [(a, b) for a in range(len(groups)) for b in range(a)]
        far = {p: max(angle(i, j) for i in groups[p[0]] for j in groups[p[1]]) for p in pairs}
        a, b = min(pairs, key=lambda p: far[p])
        groups[b] += groups.pop(a)
    return next(group for group in groups if members[0] not in group)
