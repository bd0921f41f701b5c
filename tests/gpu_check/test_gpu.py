"""The checks of `python -m c2v_sim.doctor --gpu-check` as tests: pytest -m gpu."""

import pytest
import torch

from c2v_sim.gpu_check.checks import NO_GPU, all_checks
from c2v_sim.gpu_check.outcomes import NotHere

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason=NO_GPU),
]
CUDA = torch.device("cuda")


@pytest.mark.parametrize("name", all_checks(CUDA))
def test_gpu(name):
    try:
        all_checks(CUDA)[name]()
    except NotHere as reason:
        pytest.skip(str(reason))
