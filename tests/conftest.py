"""Set before anything imports triton: kernels are interpreted, since no GPU is needed here."""

import json
import os
import tempfile
from pathlib import Path

import hypothesis
import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


hypothesis.settings.register_profile("long", max_examples=1000)  # ten times as many: make fuzz


@pytest.fixture(autouse=True)
def _poison_uninitialised_memory():
    """torch.empty returns NaN, so that a kernel that forgets an element is found."""
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def for_everybody():
    """A folder that every user may look into. pytest's are closed to others: whoever opens them has
    them closed again by the next pytest that begins."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture(scope="session")
def report_runs(tmp_path_factory):
    """The folder of some real runs, for the report."""
    from report_directories import make_real_runs

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("C2V_DATA", str(tmp_path_factory.getbasetemp() / "data"))
        return make_real_runs(tmp_path_factory.mktemp("runs") / "cells")


@pytest.fixture(scope="session")
def report_of_many(report_runs, tmp_path_factory):
    from c2v_sim.report import __main__ as report

    return report.make_report([report_runs], tmp_path_factory.mktemp("many") / "report.html")


@pytest.fixture(scope="session")
def failed_cells(report_runs, tmp_path_factory):
    """Those runs as cells of a sweep of which four failed: one in a round, three before it."""
    from report_directories import add_failures

    return add_failures(report_runs, tmp_path_factory.mktemp("failed") / "cells")


@pytest.fixture(scope="session")
def manifest_template(report_runs):
    return json.loads((report_runs / "steered-0" / "manifest.json").read_text())
