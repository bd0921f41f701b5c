"""examples/own_sampler.py, and what the simulator does with a policy that is not its own."""

import sys

import numpy as np
import pytest
import torch
from example_scripts import EXAMPLES, lines_of_class, printed
from federations import image_federation, made_up_index

from c2v_sim import RunConfig, Simulator

sys.path.insert(0, str(EXAMPLES))

from own_sampler import Active, toy_federation

CONFIG = RunConfig(model="linear", rounds=4, participation=0.5, local_epochs=1, batch_size=8)


def cohorts(sampler, config=CONFIG, federation=None):
    simulator = Simulator(federation or image_federation(), config, sampler=sampler)
    try:
        return [record.cohort for record in simulator.rounds()]
    finally:
        simulator.close()


def test_the_simulator_asks_the_policy_and_puts_its_answer_in_order():
    asked = []

    def in_turn(seed, t, sizes, k):
        asked.append((seed, t, sizes.tolist(), k))
        return [(3 * t + j) % len(sizes) for j in reversed(range(k))]

    assert cohorts(in_turn) == [[3, 4, 5], [0, 1, 2], [3, 4, 5], [0, 1, 2]]
    sizes = [3 + 7 * i for i in range(6)]
    assert asked == [(CONFIG.seed, t, sizes, 3) for t in (1, 2, 3, 4)]


def test_an_own_policy_that_answers_as_uniform_gives_the_same_bits():
    from c2v_sim.training.sampling import uniform

    def same(seed, t, sizes, k):
        return uniform(seed, t, sizes, k)[::-1].copy()

    states = []
    for sampler in (None, same):
        simulator = Simulator(image_federation(), CONFIG, sampler=sampler)
        simulator.run()
        simulator.close()
        states.append(simulator.server.data)
    assert torch.equal(*states)


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        ([0, 1], "3 client ids are needed, an integer array [3], got int64 [2]"),
        ([0.0, 1.0, 2.0], "an integer array [3], got float64 [3]"),
        ([[0, 1, 2]], "an integer array [3], got int64 [1, 3]"),
        ([1, 2, 6], "client ids must be in 0..5, got [1, 2, 6]"),
        ([-1, 2, 4], "client ids must be in 0..5, got [-1, 2, 4]"),
        ([2, 4, 2], "the 3 clients must differ, got [2, 2, 4]"),
        (None, "an integer array [3], got object []"),
    ],
)
def test_an_answer_that_is_no_cohort_is_refused_with_the_round(answer, wrong):
    with pytest.raises(ValueError, match="sampler, round 1: ") as error:
        cohorts(lambda seed, t, sizes, k: answer)
    assert wrong in str(error.value)


def test_a_policy_and_an_index_that_steers_sampling_are_refused_together():
    config = RunConfig(**vars(CONFIG) | {"improve": ("sampling",)})
    federation = image_federation()
    with pytest.raises(ValueError, match="both choose the cohort"):
        Simulator(federation, config, sampler=Active(1.0), index=made_up_index(federation))
    config = RunConfig(**vars(CONFIG) | {"improve": ("aggregation",)})
    index = made_up_index(federation)
    simulator = Simulator(federation, config, index=index, sampler=lambda s, t, n, k: [0, 2, 5])
    assert [r.cohort for r in simulator.rounds()] == [[0, 2, 5]] * 4
    simulator.close()


def test_active_draws_by_the_losses_of_the_last_participations():
    federation = toy_federation(clients=20)
    config = RunConfig(model="mlp", rounds=12, participation=0.15, lr=0.1, batch_size=16)
    simulator = Simulator(federation, config, sampler=Active(0.3))
    sizes, known = federation.partition.sizes, {}
    for t, record in enumerate(simulator.rounds(), 1):
        value = {i: sizes[i] ** 0.5 * loss for i, loss in known.items()}
        most = max(value.values(), default=0.0)
        noise = np.random.default_rng([config.seed, 2, t]).gumbel(size=20)
        keys = {i: value.get(i, most) / 0.3 + noise[i] for i in range(20)}
        assert record.cohort == sorted(sorted(keys, key=keys.get)[-3:])
        known |= {i: simulator.sampler.loss[i].item() for i in record.cohort}
        assert np.mean([known[i] for i in record.cohort]) == pytest.approx(record.train_loss)
    simulator.close()
    assert len(known) > 6


def test_the_class_has_fewer_than_forty_lines():
    assert lines_of_class("own_sampler.py") < 40


def test_the_example_runs_and_the_rare_clients_are_helped():
    uniform, chosen = printed("own_sampler.py")
    assert uniform.startswith("uniform: rare")
    assert chosen.startswith("active: rare")

    def numbers(line):
        words = line.replace("%", "").split()
        floats = [float(w) for w in words if w[0].isdigit()]
        return floats[0], floats[1]

    (share, worst), (share_chosen, worst_chosen) = numbers(uniform), numbers(chosen)
    assert share_chosen > 1.5 * share
    assert worst_chosen > worst > 0.5
