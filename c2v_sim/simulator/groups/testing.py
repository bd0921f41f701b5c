"""Stage 9 whole: every client by its model, and apart from that the clients that never train."""

from c2v_sim.algorithms import Algorithm
from c2v_sim.data.federation import Federation
from c2v_sim.data.resident import ResidentData
from c2v_sim.simulator.evaluation import Accuracy, accuracy
from c2v_sim.simulator.groups.clusters import models_of
from c2v_sim.simulator.groups.held_out import held_out_accuracy
from c2v_sim.simulator.personal import correct_at_home
from c2v_sim.training.arena import Arena
from c2v_sim.training.lanes import Lanes


def test_clients(
    lanes: Lanes,
    server: Arena,
    data: ResidentData,
    federation: Federation,
    algorithm: Algorithm,
) -> Accuracy:
    """Of the models that `algorithm.tested` names."""
    partition = federation.partition
    if not partition.tested:
        name = federation.dataset.name
        raise ValueError(f"evaluate: {name} has no test samples; give from_arrays test arrays")
    marks = correct_at_home(lanes, server, data, partition, algorithm)
    return accuracy(
        marks,
        partition,
        of_nobody=models_of(algorithm) == 1,
        held_out=held_out_accuracy(lanes, server, data, federation, algorithm),
    )
