"""The few steps by which a sweep's time is estimated can be taken, whatever a cell asks for."""

import pytest

from c2v_sim.config import RunConfig
from c2v_sim.run.build import build_federation
from c2v_sim.sweep.probe import probe

SMALL = {"model": "linear", "clients": 12, "train_size": 360, "test_size": 60, "batch_size": 16}


@pytest.mark.parametrize(
    "asked",
    [
        {"improve": ("clustering",), "clusters": 5},
        {"improve": ("clustering", "personalization"), "clusters": 5, "hold_out_clients": 0.2},
        {"improve": ("personalization",), "index": "label-histogram"},
        {"improve": ("sampling", "aggregation", "local")},
        {"algorithm": "ifca", "ifca_models": 5},
        {"algorithm": "cfl", "cfl_clusters": 5},
        {"sampling": "power-of-choice", "power_of_choice_candidates": 8},
        {"sampling": "clustered-size", "cohort": 6},
    ],
    ids=lambda asked: "-".join(map(str, asked.values())),
)
def test_a_probe_has_fewer_clients_than_the_run(asked):
    federation, config = build_federation(RunConfig(**SMALL | asked))
    pace = probe(federation, config, lanes=2)
    assert pace.sample > 0.0
    assert pace.test_sample > 0.0
