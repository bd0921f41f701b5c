"""Operators that choose their vectors at load time, once more with those of 8 floats.

Where the CPU has AVX-512 the other tests run with vectors of 16. test_convolution.py and
test_depthwise_convolution.py have cases of their own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from c2v_sim.ops._dispatch import native_missing

OPERATORS = ("fused_ffn", "index_losses", "projection_orthogonality", "short_attention", "max_pool")


@pytest.mark.skipif(native_missing is not None, reason=str(native_missing))
@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="vectors of 8 floats are those of the other tests here",
)
def test_the_operators_with_vectors_of_8_floats():
    files = [f"test_{operator}.py" for operator in OPERATORS]
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "-k", "native or short_attention"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        cwd=Path(__file__).parent,
        env=os.environ | {"ATEN_CPU_CAPABILITY": "avx2"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:]
