"""The samplers that keep state or ask the run for losses, against slow versions of themselves."""

import copy
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from federations import bits, image_federation

from c2v_sim import RunConfig, Simulator
from c2v_sim.models import logits
from c2v_sim.training.samplers import SAMPLERS, Sampler
from c2v_sim.training.samplers.clustered import by_similarity
from c2v_sim.training.samplers.divfl import representatives
from c2v_sim.training.samplers.urns import by_size

FEDERATION = image_federation(clients=12, smallest=3)
SIZES = FEDERATION.partition.sizes
K = 4
SETTINGS = {
    "model": "linear",
    "rounds": 5,
    "participation": 0.34,
    "local_epochs": 1,
    "batch_size": 8,
    "lr": 0.05,
    "seed": 3,
    "eval_every": 5,
}
ASKING = ("power-of-choice", "clustered-size", "clustered-similarity", "divfl")


def simulator_for(sampling, **changes):
    return Simulator(FEDERATION, RunConfig(**SETTINGS | {"sampling": sampling} | changes))


def end_of(simulator):
    records = [replace(record, seconds={}) for record in simulator.rounds()]
    simulator.close()
    return bits(simulator.state()), records


# Urns


def tickets_of(line, k):
    """The client of every ticket, urn by urn, [k, N]."""
    starts = np.concatenate([[0], line.ends[:-1]])
    return np.repeat(line.ids, line.ends - starts).reshape(k, -1)


def expected_weights(urns, clients):
    """1/k sum_j r_ji, as fractions."""
    k, room = urns.shape
    share = [Fraction(int((urns == i).sum()), room) for i in range(clients)]
    return [s / k for s in share]


SOME_SIZES = [
    np.array([5, 1, 9, 3, 3, 7]),
    np.array([40, 1, 1, 2]),  # a client that is more than an urn
    np.array([4]),
    np.array([2, 2, 2, 2]),
]


@pytest.mark.parametrize("sizes", SOME_SIZES, ids=str)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_urns_by_size_hold_everybody_in_the_order_of_size(sizes, k):
    k = min(k, len(sizes))
    urns = tickets_of(by_size(sizes, k), k)
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    assert urns.ravel().tolist() == [i for i in order for _ in range(k * sizes[i])]
    assert expected_weights(urns, len(sizes)) == [Fraction(int(n), int(sizes.sum())) for n in sizes]


def test_a_ticket_is_drawn_from_each_urn():
    sizes, k = SOME_SIZES[0], 3
    line = by_size(sizes, k)
    urns = tickets_of(line, k)
    for seed in range(20):
        places = np.random.default_rng(seed).integers(0, sizes.sum(), size=k)
        drawn = line.draw(k, np.random.default_rng(seed))
        assert drawn.tolist() == [urns[j, place] for j, place in enumerate(places)]


def slow_groups(distances, tickets, room):
    """Ward's tree by the formula of Lance and Williams, cut where a part no longer fits."""
    d = {(i, j): distances[i, j] for i in range(len(tickets)) for j in range(len(tickets))}
    parts = {i: [i] for i in range(len(tickets))}  # the tree's roots so far
    fitting = {i: [i] for i in range(len(tickets))}
    for new in range(len(tickets), 2 * len(tickets) - 1):
        a, b = min(((i, j) for i in parts for j in parts if i < j), key=lambda pair: d[pair])
        na, nb = len(parts[a]), len(parts[b])
        for c in parts.keys() - {a, b}:
            nc = len(parts[c])
            square = (na + nc) * d[a, c] ** 2 + (nb + nc) * d[b, c] ** 2 - nc * d[a, b] ** 2
            d[new, c] = d[c, new] = (square / (na + nb + nc)) ** 0.5
        parts[new] = parts.pop(a) + parts.pop(b)
        if a in fitting and b in fitting and sum(tickets[i] for i in parts[new]) <= room:
            fitting[new] = fitting.pop(a) + fitting.pop(b)
    return [sorted(group) for group in fitting.values()]


def slow_urns(distances, known, sizes, k):
    tickets, room = k * sizes, sizes.sum()
    urns = [[i] * room for i in range(len(sizes)) for _ in range(tickets[i] // room)]
    rest = tickets % room
    left = [i for i in range(len(sizes)) if rest[i] and known[i]]
    groups = slow_groups(distances[np.ix_(left, left)], rest[left], room)
    groups = [[left[i] for i in group] for group in groups]
    groups += [[i] for i in range(len(sizes)) if rest[i] and not known[i]]
    groups.sort(key=lambda group: (-sum(rest[group]), group[0]))
    shared = [[i for i in group for _ in range(rest[i])] for group in groups[: k - len(urns)]]
    waiting = [i for group in groups[k - len(urns) :] for i in group for _ in range(rest[i])]
    for urn in shared:
        while len(urn) < room:
            urn.append(waiting.pop(0))
    assert waiting == []
    return np.array(urns + shared)


@pytest.mark.parametrize("sizes", [*SOME_SIZES, SIZES], ids=str)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_urns_by_similarity_equal_the_slow_ones(sizes, k):
    k = min(k, len(sizes))
    points = np.random.default_rng(k).normal(size=(len(sizes), 3))
    distances = np.linalg.norm(points[:, None] - points, axis=2)
    for known in (np.ones(len(sizes), bool), np.arange(len(sizes)) % 3 > 0):
        urns = tickets_of(by_similarity(distances, known, sizes, k), k)
        assert np.array_equal(urns, slow_urns(distances, known, sizes, k))
        shares = [Fraction(int(n), int(sizes.sum())) for n in sizes]
        assert expected_weights(urns, len(sizes)) == shares


def test_clients_that_are_alike_share_an_urn():
    groups = np.repeat([0, 1, 2], 4)
    distances = (groups[:, None] != groups).astype(float)
    urns = tickets_of(by_similarity(distances, np.ones(12, bool), np.full(12, 5), 3), 3)
    assert [set(groups[urn]) for urn in urns] == [{0}, {1}, {2}]


# Facility location


def test_representatives_are_those_of_the_slow_greed():
    points = np.random.default_rng(0).normal(size=(15, 2))
    distances = np.linalg.norm(points[:, None] - points, axis=2)
    chosen = []
    for _ in range(5):
        others = [i for i in range(15) if i not in chosen]
        cost = {
            i: sum(min(distances[j, c] for c in [*chosen, i]) for j in range(15)) for i in others
        }
        chosen.append(min(others, key=cost.get))
    assert representatives(distances, 5).tolist() == chosen
    alike = np.zeros((4, 4))
    assert representatives(alike, 3).tolist() == [0, 1, 2]


# In a run


def followed(simulator):
    """Round by round: the record, the model before it, and each client's last update before it."""
    updates = {}
    rounds = simulator.rounds()
    while simulator.round < simulator.config.rounds:
        before, known = simulator.server.data[0].clone(), dict(updates)
        record = next(rounds)
        yield record, before, known
        rows = simulator.training.cohort.data
        updates |= {i: rows[n] - before for n, i in enumerate(record.cohort)}
    simulator.close()


def gumbel(t):
    return np.random.default_rng([SETTINGS["seed"], 2, t]).gumbel(size=len(SIZES))


def test_power_of_choice_takes_the_candidates_with_the_largest_loss():
    simulator = simulator_for("power-of-choice", power_of_choice_candidates=7)
    x, y = simulator.train_data.batch(torch.arange(len(FEDERATION.dataset.y_train)))
    for record, before, _ in followed(simulator):
        model = copy.deepcopy(simulator.model).eval()
        torch.nn.utils.vector_to_parameters(before, model.parameters())
        drawn = np.argsort(-(np.log(SIZES) + gumbel(record.round)))[:7]
        losses = {}
        for i in drawn.tolist():
            own = torch.from_numpy(FEDERATION.partition.train[i])
            losses[i] = F.cross_entropy(logits(model, x[own]), y[own]).item()
        assert record.cohort == sorted(sorted(losses, key=losses.get)[-K:])
        assert record.weights == [1 / K] * K


def test_divfl_first_meets_everybody_then_takes_representatives():
    steps = list(followed(simulator_for("divfl", rounds=7)))
    met = [i for record, _, _ in steps[:3] for i in record.cohort]
    assert sorted(met) == list(range(12))
    assert steps[0][0].cohort == sorted(np.argsort(-gumbel(1))[:K].tolist())
    for record, _, updates in steps[3:]:
        chosen = []
        for _ in range(K):
            others = [i for i in np.argsort(-gumbel(record.round)).tolist() if i not in chosen]
            far = {
                i: {j: torch.dist(updates[j], updates[i]).item() for j in updates} for i in updates
            }
            cost = {i: sum(min(far[c][j] for c in [*chosen, i]) for j in updates) for i in others}
            chosen.append(min(others, key=cost.get))
        assert record.cohort == sorted(chosen)
        assert record.weights == pytest.approx(SIZES[record.cohort] / SIZES[record.cohort].sum())


def test_clustered_similarity_draws_from_urns_of_clients_that_pull_alike():
    seen = 0
    for record, _, updates in followed(simulator_for("clustered-similarity", rounds=6)):
        angles = np.zeros((12, 12))
        for i in range(12):
            for j in range(12):
                if i in updates and j in updates and i != j:
                    cosine = F.cosine_similarity(updates[i], updates[j], dim=0)
                    angles[i, j] = np.arccos(np.clip(cosine.item(), -1, 1))
        draws = np.random.default_rng([SETTINGS["seed"], 2, record.round])
        places = draws.integers(0, SIZES.sum(), size=K)
        urns = slow_urns(angles, [i in updates for i in range(12)], SIZES, K)
        drawn = [urns[j, place] for j, place in enumerate(places)]
        assert record.cohort == sorted(set(drawn))
        assert record.weights == [drawn.count(i) / K for i in record.cohort]
        seen = len(updates)
    assert seen > 6


def test_clustered_by_size_counts_every_draw():
    simulator = simulator_for("clustered-size", rounds=30, participation=1.0, local_epochs=1)
    records = list(simulator.rounds())
    simulator.close()
    urns = tickets_of(by_size(SIZES, 12), 12)
    for record in records:
        draws = np.random.default_rng([SETTINGS["seed"], 2, record.round])
        places = draws.integers(0, SIZES.sum(), size=12)
        drawn = [urns[j, place] for j, place in enumerate(places)]
        assert record.cohort == sorted(set(drawn))
        assert record.weights == pytest.approx([drawn.count(i) / 12 for i in record.cohort])
    assert min(len(r.cohort) for r in records) < 12  # a client that is drawn twice trains once


CASES = {
    **{name: {"sampling": name} for name in ASKING},
    "sketch": {"sampling": "divfl", "update_sketch": 16},
    "halves": {"sampling": "clustered-similarity", "state_dtype": "bfloat16"},
    "statistics": {"sampling": "divfl", "model": "resnet8", "algorithm": "fedbn", "rounds": 4},
}


@pytest.mark.parametrize("case", CASES)
def test_lanes_and_a_resume_do_not_show(case):
    simulator = simulator_for(**CASES[case], lanes=1)
    rounds = simulator.rounds()
    first = [replace(next(rounds), seconds={}) for _ in range(3)]
    middle = {name: tensor.clone() for name, tensor in simulator.state().items()}
    end, rest = end_of(simulator)
    assert end_of(simulator_for(**CASES[case], lanes=3)) == (end, first + rest)
    other = simulator_for(**CASES[case], lanes=2)
    other.load_state(3, middle)
    assert end_of(other) == (end, rest)


def test_a_sketch_keeps_distances_and_angles_up_to_chance():
    exact, sketched = (simulator_for("divfl", rounds=3, update_sketch=n) for n in (0, 400))
    for simulator in (exact, sketched):
        simulator.run()
        simulator.close()
    width, whole = sketched.sampler.updates.width, exact.sampler.updates.width
    assert (width, whole) == (400, exact.layout.trainable)
    apart = ~np.eye(12, dtype=bool)
    ratio = (sketched.sampler.updates.table / exact.sampler.updates.table).numpy()[apart]
    assert abs(ratio.mean() - 1) < 0.1
    assert np.abs(ratio - 1).max() < 5 * (2 / 400) ** 0.5
    assert (ratio != 1).all()


class LargestLastLoss(Sampler):
    """A user's: those who had the largest loss when they last trained, the unknown first."""

    def start(self, run):
        self.losses = run.server_state("sampler.losses", run.clients)
        self.losses.fill_(float("inf"))

    def __call__(self, seed, t, sizes, k):
        return np.argsort(-self.losses.numpy(), kind="stable")[:k]

    def finish(self, clients, losses):
        self.losses[torch.from_numpy(clients)] = losses


def test_a_users_sampler_keeps_losses_with_the_run():
    def simulator():
        return Simulator(FEDERATION, RunConfig(**SETTINGS), sampler=LargestLastLoss())

    whole, part, rest = simulator(), simulator(), simulator()
    end, records = end_of(whole)
    assert [r.cohort for r in records[:3]] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert records[3].cohort != records[0].cohort
    rounds = part.rounds()
    next(rounds), next(rounds), next(rounds)
    rest.load_state(3, part.state())
    assert end_of(rest)[0] == end
    part.close()


def test_what_cannot_work_is_refused():
    with pytest.raises(ValueError, match="power_of_choice_candidates must be at least 4"):
        simulator_for("power-of-choice", power_of_choice_candidates=3)
    with pytest.raises(NotImplementedError, match="Sampler must say who trains"):
        next(Simulator(FEDERATION, RunConfig(**SETTINGS), sampler=Sampler()).rounds())

    class Twice(LargestLastLoss):
        def start(self, run):
            run.server_state("m", 3)

    config = RunConfig(**SETTINGS | {"algorithm": "fedadam"})
    with pytest.raises(ValueError, match="state 'm' was asked for twice"):
        Simulator(FEDERATION, config, sampler=Twice())


def test_every_sampler_of_the_settings_is_made():
    for name in SAMPLERS:
        simulator = simulator_for(name, rounds=1, eval_every=1)
        record = next(simulator.rounds())
        simulator.close()
        assert 1 <= len(record.cohort) <= K
        assert sum(record.weights) == pytest.approx(1)
