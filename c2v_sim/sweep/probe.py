"""What a step of a run costs here and now: a short real training of a few clients.

A run is measured by two rounds of a small federation, one client per lane with two batches of
samples, as many lanes as there will be cells side by side, so that what they take from one another
is in the measurement.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np
import torch

from c2v_sim.config import RunConfig
from c2v_sim.data.federation import Federation
from c2v_sim.data.partition import Partition
from c2v_sim.index.client_index import ClientIndex, federation_facts
from c2v_sim.index.encoders.encoder import WIDTH
from c2v_sim.simulator.build import trains_stacked
from c2v_sim.simulator.evaluation import BATCH
from c2v_sim.simulator.simulator import Simulator


@dataclass(frozen=True)
class Pace:
    """Seconds of one lane."""

    sample: float  # trained
    aggregation: float
    test_sample: float


def probe(federation: Federation, config: RunConfig, lanes: int) -> Pace:
    """Two rounds, measured in the second: then every client has a past."""
    whole = federation.partition
    cohort = config.cohort_of(whole.clients)
    stacked = trains_stacked(federation, config)  # the cohort trains as one computation
    lanes = 1 if stacked else min(lanes, whole.clients)
    count = cohort if stacked else lanes
    small = few_clients(federation, count, 2 * config.batch_size, lanes * BATCH)
    local = ("local",) if "local" in config.improve else ()
    config = dataclasses.replace(
        config,
        improve=local,
        participation=1.0,
        cohort=0,
        clients=count,
        clusters=0,  # maybe more than the few clients here; without clustering it says nothing
        lanes=lanes,
        rounds=2,
        local_epochs=1,
        eval_every=1,
        lr=1e-6,  # whatever the cell's: no overflow
    )
    simulator = Simulator(small, config)
    try:
        if config.needs_client_index:
            simulator.use_index(made_up_index(small, simulator))
        if simulator.regulariser is not None:  # as many clients as there really are
            width = simulator.regulariser.index.shape[1]
            simulator.regularise_by(torch.rand(whole.clients, width))
        seconds = simulator.run().final.seconds
    finally:
        simulator.close()
    return Pace(
        sample=seconds["train"] * lanes / small.partition.sizes.sum(),
        aggregation=seconds["aggregate"] * cohort / count,
        test_sample=seconds["evaluate"] * lanes / len(small.dataset.y_test),
    )


def few_clients(federation: Federation, count: int, most: int, tests: int) -> Federation:
    """The `count` largest clients with at most `most` samples each, and `tests` test samples."""
    sizes = federation.partition.sizes
    largest = np.sort(np.argsort(-sizes, kind="stable")[:count])
    train = tuple(federation.partition.train[i][:most] for i in largest)
    tests = min(tests, len(federation.dataset.y_test))
    test = tuple(np.array_split(np.arange(tests), count))
    return Federation(federation.dataset.first("test", tests), Partition(train, test, "a probe"))


def made_up_index(federation: Federation, simulator: Simulator) -> ClientIndex:
    """An index of random numbers: what it costs does not depend on them."""
    regulariser = simulator.regulariser
    columns = WIDTH if regulariser is None else regulariser.index.shape[1]
    clients = federation.partition.clients
    return ClientIndex(
        feature=torch.rand(clients, columns),
        label=torch.zeros(clients, 0),
        sizes=torch.from_numpy(federation.partition.sizes),
        label_counts=federation.label_counts,
        domains=None,
        provenance={"federation": federation_facts(federation)},
    )
