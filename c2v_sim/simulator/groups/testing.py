"""Stage 9 whole: every client by its model, and apart from that the clients that never train.

Where models are personal, the accuracy of those that they are made of is taken as well: of the
global model, or of the clusters'.
"""

import dataclasses

from c2v_sim.algorithms import Algorithm
from c2v_sim.algorithms.fedavg import PERSONAL
from c2v_sim.algorithms.personal.mixture import Mixture
from c2v_sim.data.federation import Federation
from c2v_sim.data.resident import ResidentData
from c2v_sim.simulator.evaluation import Accuracy, accuracy, correct
from c2v_sim.simulator.groups.clusters import models_of
from c2v_sim.simulator.groups.held_out import held_out_accuracy
from c2v_sim.simulator.groups.second import tuning
from c2v_sim.simulator.personal import correct_at_home
from c2v_sim.training.local_training import CohortTraining


def test_clients(
    training: CohortTraining, data: ResidentData, federation: Federation, algorithm: Algorithm
) -> Accuracy:
    """Of the models that `algorithm.tested` names, on the test samples `data`."""
    lanes, server, partition = training.lanes, training.server, federation.partition
    if not partition.tested:
        name = federation.dataset.name
        raise ValueError(f"evaluate: {name} has no test samples; give from_arrays test arrays")
    parts = (lanes, server, data)
    one_model = models_of(algorithm) == 1
    of_nobody = one_model and federation.held_out is None  # or they are those of the held-out
    marks = correct_at_home(*parts, partition, algorithm, tuning(training, algorithm))
    result = accuracy(marks, partition, of_nobody=of_nobody)
    if isinstance(algorithm, Mixture):
        marks = correct_at_home(*parts, partition, algorithm.inner)
        result = dataclasses.replace(result, shared=accuracy(marks, partition).clients)
    elif algorithm.tested == PERSONAL and one_model and algorithm.shares_model:
        shared = accuracy(correct(*parts), partition).clients
        result = dataclasses.replace(result, shared=shared)
    held_out = held_out_accuracy(*parts, federation, algorithm)
    return dataclasses.replace(result, held_out=held_out)
