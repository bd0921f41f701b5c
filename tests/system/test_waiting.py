"""Threads wait for each other with a short spin, unless torch or the user has decided already."""

import os
import re
import subprocess
import sys

import pytest

from c2v_sim.system import waiting

SAY = "import os; print(os.environ.get('GOMP_SPINCOUNT'))"


def spins(code, **environment):
    """How long libgomp says that it lets threads spin, and what the variable is afterwards."""
    kept = {k: v for k, v in os.environ.items() if k not in waiting.OF_THE_USER}
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"{code}; {SAY}"],
        env=kept | {"OMP_DISPLAY_ENV": "VERBOSE"} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)
    if found is None:
        pytest.skip("this torch has no libgomp")
    return found[1], done.stdout.strip()


def test_c2v_sim_loads_torch_with_a_short_spin_and_leaves_no_variable():
    assert spins("import c2v_sim") == (waiting.FEW, "None")


def test_what_the_user_has_set_stays():
    code = "import c2v_sim.system.waiting"
    assert spins(code, OMP_WAIT_POLICY="passive") == ("0", "None")
    assert spins(code, GOMP_SPINCOUNT="77") == ("77", "77")


def test_a_program_that_imported_torch_first_keeps_its_way():
    first, variable = spins("import torch; import c2v_sim.system.waiting")
    assert first != waiting.FEW
    assert variable == "None"
