"""Set before anything imports triton: kernels are interpreted, since no GPU is needed here."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def _poison_uninitialised_memory():
    """torch.empty returns NaN, so that a kernel that forgets an element is found."""
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
