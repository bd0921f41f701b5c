"""Local training beside that of the global model: Ditto's own models, and tuning before a test."""

import dataclasses

from c2v_sim.algorithms import Algorithm
from c2v_sim.simulator.personal import Write
from c2v_sim.system.seeding import torch_seed
from c2v_sim.training.cohort import train_client
from c2v_sim.training.lane import Lane
from c2v_sim.training.local_training import CohortTraining

IN_A_TEST = 0  # the round of the random streams: rounds begin with 1


def second_training(training: CohortTraining, algorithm: Algorithm) -> CohortTraining | None:
    """What clients train a second time by in every round, where they do."""
    if algorithm.second is None:
        return None
    objective, ends = algorithm.second
    parts = {"objective": objective, "cohort": ends, "only_averaged": False}
    return dataclasses.replace(training, **parts)  # type: ignore[arg-type]


def tuning(training: CohortTraining, algorithm: Algorithm) -> Write | None:
    """Trains a client's model before it is tested, where the algorithm does that."""
    if not algorithm.tuned_epochs:
        return None
    local = dataclasses.replace(training.local, epochs=algorithm.tuned_epochs)
    own = dataclasses.replace(training, local=local, objective=Algorithm())

    def tune(lane: Lane, client: int) -> None:
        samples = len(own.samples[client])
        seed = torch_seed(own.local.seed, IN_A_TEST, client)
        lane.client.begin_participation(client, IN_A_TEST, samples, own.server, seed)
        train_client(own, lane, stoppable=False)

    return tune
