"""The notebooks run from top to bottom as they are, and are stored without what they print."""

import nbformat
import pytest
from example_scripts import EXAMPLES
from nbclient import NotebookClient

NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def printed(notebook) -> str:
    outputs = [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs]
    return "".join(o.text for o in outputs if o.output_type == "stream" and o.name == "stdout")


def execute(name, folder):
    """The notebook after a run of all its cells, in `folder`; an error in a cell is raised."""
    notebook = nbformat.read(EXAMPLES / name, as_version=4)
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}})
    return client.execute()


@pytest.fixture(autouse=True)
def data_dir(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("C2V_DATA", str(tmp_path_factory.getbasetemp() / "data"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_both_are_there():
    assert [n.name for n in NOTEBOOKS] == ["first_run.ipynb", "own_data_and_algorithm.ipynb"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_is_valid_and_stored_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code) >= 3
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)


def test_the_first_run_learns_and_shows_two_pictures(tmp_path):
    done = execute("first_run.ipynb", tmp_path)
    best = float(printed(done).split("best ")[1].split()[0])
    assert best > 0.15  # ten classes
    data = [o.data for c in done.cells if c.cell_type == "code" for o in c.outputs if "data" in o]
    assert sum("image/png" in d for d in data) == 2


def test_own_algorithm_finds_more_of_the_rare_class(tmp_path):
    lines = printed(execute("own_data_and_algorithm.ipynb", tmp_path)).splitlines()
    found = {line.split(":")[0]: float(line.split()[-1]) for line in lines if "alarms" in line}
    assert found["balanced"] > found["fedavg"] + 0.1
