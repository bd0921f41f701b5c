"""Finds optional real data for tests: $C2V_DATA, then ~/.cache/c2v_shared; else the test skips."""

import os
from pathlib import Path

import pytest


def real_data_dir(filename: str) -> Path:
    """The first folder that holds `filename`, or a skip that says what was looked for."""
    candidates = [os.environ.get("C2V_DATA"), "~/.cache/c2v_shared"]
    folders = [Path(folder).expanduser() for folder in candidates if folder]
    for folder in folders:
        if (folder / filename).exists():
            return folder
    pytest.skip(f"real data: no {filename} in {' or '.join(map(str, folders))}")
