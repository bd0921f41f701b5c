"""Finds optional real data for tests: $C2V_DATA, then what shared/data/unpack writes; or skips."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

UNPACK = Path(__file__).parents[3] / "shared" / "data" / "unpack"
UNPACKED = Path("~/.cache/c2v_shared").expanduser()


def real_data_dir(filename: str) -> Path:
    """The first folder that holds `filename`, or a skip that says what was looked for."""
    given = os.environ.get("C2V_DATA")
    if not (UNPACKED / filename).exists() and UNPACK.is_file():
        subprocess.run([sys.executable, str(UNPACK), str(UNPACKED)], check=True, timeout=600)
    folders = [Path(given).expanduser()] if given else []
    folders.append(UNPACKED)
    for folder in folders:
        if (folder / filename).exists():
            return folder
    pytest.skip(f"real data: no {filename} in {' or '.join(map(str, folders))}")
