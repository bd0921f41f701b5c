"""A long run needs no more memory than a short one."""

import gc

import psutil
from federations import image_federation

from c2v_sim import RunConfig, Simulator


def test_memory_stays_flat_over_rounds():
    # One forgotten copy of the model (2.4 MB) per round would be 96 MB after these 40 rounds.
    settings = RunConfig(model="mlp", participation=0.5, rounds=60, local_epochs=1, lanes=2)
    simulator = Simulator(image_federation(side=32), settings)
    resident = {}
    for record in simulator.rounds():
        if record.round in (20, 60):
            gc.collect()  # what earlier tests left behind
            resident[record.round] = psutil.Process().memory_info().rss / 1e6
    simulator.close()
    assert resident[60] - resident[20] < 30
