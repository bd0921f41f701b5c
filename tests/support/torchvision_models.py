"""torchvision's models for tests, where it is installed; or a skip that says so."""

import pytest

from c2v_sim.index.encoders.clip import _declare_torchvision_operators


def torchvision_models():
    _declare_torchvision_operators()  # beside a CPU-only torch it cannot be imported without
    return pytest.importorskip("torchvision.models")
