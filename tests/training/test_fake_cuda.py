"""The whole simulator on fake tensors of a GPU: no operator mixes devices, and nothing that is
recorded as a CUDA graph waits for the device or reads the host.

The cases run in a process of their own, since the fake device has to be there before torch
(tests/support/fake_cuda_driver.py).
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import fake_cuda_library
import pytest
import torch

from c2v_sim import RunConfig
from c2v_sim.algorithms import ALGORITHMS
from c2v_sim.training.samplers import SAMPLERS

MODELS = ("cnn", "resnet8", "resnet18", "mobilenetv2", "cct", "lstm")
STEERED = ("case i and ii", "case iii", "cases i to iii", "case iii, growing")
MODELS_OF_CLIENTS = ("clusters", "clusters, steered", "personal classifiers")
MODELS_OF_CLIENTS += ("clients that never train", "unlike lengths, not padded")
INDEX = ("index, global", "index, federated", "index, federated, stacked", "an index is made")
INDEX += ("a naive index is made",)
MEMORY = ("stacked", "stacked cnn", "stacked resnet8", "rows in half", "rows in a file")
# Steps that are not recorded: of algorithms that say so, and with an index that grows each round.
NOT_RECORDED = {name for name, make in ALGORITHMS.items() if not make(RunConfig()).capturable}
NOT_RECORDED |= {"case iii, growing", "clusters", "clusters, steered"}
MISTAKES = {
    "a value is asked for": "cannot be recorded.*_local_scalar_dense",
    "a copy while recording": "cannot be recorded.*between host and device",
    "a tensor of the host": "Expected all tensors to be on the same device",
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """What the driver says of each case."""
    if torch.version.cuda or torch.version.hip:
        pytest.skip("this torch has a device of its own; the fake one is for the build without")
    folder = tmp_path_factory.mktemp("fake_cuda")
    try:
        library = fake_cuda_library.build(folder)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    done = subprocess.run(
        [sys.executable, "-P", fake_cuda_library.__file__.replace("library", "driver"), library],
        capture_output=True,
        text=True,
        timeout=1500,
        env=os.environ
        | {"C2V_DATA": str(folder), "OMP_NUM_THREADS": "1"}
        | {"PYTHONPATH": str(Path(fake_cuda_library.__file__).parent)},
    )
    assert done.returncode == 0, done.stderr
    return {row["case"]: row for row in map(json.loads, done.stdout.splitlines())}


def sampled():
    return [f"sampling {name}" for name in SAMPLERS]


def cases():
    return [*ALGORITHMS, *MODELS, *sampled(), *STEERED, *MODELS_OF_CLIENTS, *INDEX, *MEMORY]


@pytest.mark.parametrize("case", cases())
def test_runs_on_a_gpu_as_far_as_devices_go(rows, case):
    row = rows[case]
    assert "error" not in row, row["trace"]
    assert row["rounds"] in (1, 2)
    if case not in NOT_RECORDED:
        assert row["replays"] >= 1, "no step was recorded"


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_found(rows, case):
    assert re.search(MISTAKES[case], rows[case].get("error", "the mistake passed"))


def test_all_cases_are_asked_about(rows):
    asked = {*cases(), *MISTAKES}
    assert asked == set(rows)
