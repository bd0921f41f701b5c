"""What a cell of a sweep is expected to take."""

from c2v_sim import RunConfig
from c2v_sim.sweep.memory import expected_bytes, load_data

SETTINGS = {
    "clients": 10,
    "train_size": 60,
    "test_size": 20,
    "participation": 0.2,
    "model": "linear",
}
ROW = 4 * (3 * 32 * 32 * 10 + 10)


def more_than_fedavg(**changes):
    plain, other = (RunConfig(**SETTINGS | more) for more in ({}, changes))
    dataset = load_data(plain)
    return expected_bytes(other, dataset) - expected_bytes(plain, dataset)


def test_rows_and_distances_that_clients_and_samplers_keep_are_counted():
    assert more_than_fedavg(algorithm="scaffold") == 10 * ROW
    assert more_than_fedavg(algorithm="feddyn", rounds=2) == 4 * ROW
    assert more_than_fedavg(sampling="power-of-choice") == 0
    distances = 4 * 10**2
    assert more_than_fedavg(sampling="divfl") == 10 * ROW + distances
    sketched = {"sampling": "clustered-similarity", "update_sketch": 16, "algorithm": "scaffold"}
    assert more_than_fedavg(**sketched) == 10 * (ROW + 4 * 16) + distances
