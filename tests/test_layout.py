"""The tree tells the story: rooms, the order of their imports, and names that agree everywhere."""

import ast
import re
import shutil
from pathlib import Path

import pytest

import c2v_sim

ROOT = Path(__file__).parents[1]
# From the lowest to the highest; a room imports only from itself and from those before it.
ORDER = ("system", "ops", "models", "data", "training", "algorithms", "index", "config")
ORDER += ("simulator", "gpu_check", "flower", "run", "sweep", "report", "beside")
BESIDE = {"sweep": {"report"}, "report": {"sweep"}}  # neither stands on the other
DOORS = {"__init__", "__main__", "doctor", "tables"}  # what people enter by: above all rooms
PACKAGE = ROOT / "c2v_sim"
MOST_ENTRIES, MOST_LINES = 15, 300


def modules(package=PACKAGE):
    """`index.training` -> its file; a folder's __init__ has the folder's name."""
    files = (p.relative_to(package).with_suffix("") for p in sorted(package.rglob("*.py")))
    named = {".".join(f.parts).removesuffix(".__init__"): f for f in files}
    return {name: package / f.with_suffix(".py") for name, f in named.items()}


def imports(file, known):
    """The modules of the package that `file` imports, wherever in it the import stands."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            own = name.removeprefix("c2v_sim.")
            if own != name and not own.startswith("kernels"):
                found.add(own if own in known else own.rpartition(".")[0])
    return found & set(known)


def upward(package=PACKAGE):
    """Imports that point to a room above, or to a door; as sentences."""
    known = modules(package)
    bad = []
    for name, file in known.items():
        room, last = name.split(".")[0], name.split(".")[-1]
        if last in DOORS:
            continue
        allowed = set(ORDER[: ORDER.index(room) + 1]) - BESIDE.get(room, set())
        for other in imports(file, known):
            if other.split(".")[0] not in allowed or other.split(".")[-1] in DOORS:
                bad.append(f"{name} imports {other}")
    return bad


def cycles(package=PACKAGE):
    """Modules that import one another, in a circle of any length."""
    known = modules(package)
    left = {name: imports(file, known) - {name} for name, file in known.items()}
    while free := {name for name, needs in left.items() if not needs & set(left)}:
        left = {name: needs for name, needs in left.items() if name not in free}
    return sorted(left)


def test_every_room_has_a_place_in_the_order():
    rooms = {name.split(".")[0] for name in modules()} - DOORS
    assert rooms == set(ORDER)


def test_imports_point_downwards():
    assert upward() == []


def test_no_module_imports_itself_through_others():
    assert cycles() == []


@pytest.mark.parametrize(
    ("file", "line", "found"),
    [
        ("training/arena.py", "from c2v_sim.algorithms import Algorithm", "training.arena"),
        ("system/files.py", "import c2v_sim.ops.sgd_step", "system.files"),
        ("report/runs.py", "from c2v_sim.sweep import file", "report.runs imports sweep.file"),
        (
            "algorithms/moon.py",
            "if TYPE_CHECKING:\n    from c2v_sim.simulator.simulator import Simulator",
            "algorithms.moon imports simulator.simulator",
        ),
        ("sweep/jobs.py", "def f():\n    from c2v_sim.run.__main__ import main", "sweep.jobs"),
    ],
)
def test_an_upward_import_is_found(tmp_path, file, line, found):
    package = tmp_path / "c2v_sim"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    (package / file).write_text((package / file).read_text() + f"\n{line}\n")
    assert any(sentence.startswith(found) for sentence in upward(package))


def test_a_cycle_inside_a_room_is_found(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.py").write_text("from c2v_sim.data.b import x\n")
    (tmp_path / "data/b.py").write_text("from c2v_sim.data import c\n")
    (tmp_path / "data/c.py").write_text("import c2v_sim.data.a\n")
    assert cycles(tmp_path) == ["data.a", "data.b", "data.c"]


@pytest.mark.parametrize(
    "folder", ["", *sorted({str(Path(*n.split(".")[:-1])) for n in modules()} - {"."})]
)
def test_a_room_has_about_ten_entries(folder):
    entries = [
        p
        for p in (PACKAGE / folder).iterdir()
        if not p.name.startswith(("__pycache__", "_C", "__init__", "__main__"))
        and p.suffix != ".so"
    ]
    doors = 0 if folder else 4  # config, doctor, tables, py.typed beside the rooms
    assert len(entries) <= MOST_ENTRIES + doors, sorted(p.name for p in entries)


def test_no_file_is_long():
    long = {n: len(f.read_text().splitlines()) for n, f in modules().items()}
    assert {n: lines for n, lines in long.items() if lines > MOST_LINES} == {}


def names(folder, pattern="*.py"):
    return {p.stem for p in (ROOT / folder).glob(pattern) if not p.stem.startswith("_")}


# A GPU's libraries have better ones.
FOR_THE_CPU = {"convolution", "depthwise_convolution", "max_pool", "normalize", "short_attention"}
FOR_THE_CPU |= {"pooled_convolution"}
FOR_A_GPU = {"dropout_mask"}  # the CPU draws from a generator


def test_every_kernel_has_an_operator_a_test_and_a_benchmark():
    operators = names("c2v_sim/ops") | names("c2v_sim/ops/layers")
    fused = names("csrc/cpu", "*.cpp")
    assert names("kernels") - FOR_A_GPU == fused - FOR_THE_CPU <= operators
    assert operators >= FOR_THE_CPU | FOR_A_GPU
    assert names("csrc/cuda", "*.cu") <= operators
    assert operators <= {n.removeprefix("test_") for n in names("tests/ops")}
    assert fused | FOR_A_GPU <= {n.removeprefix("bench_") for n in names("bench")}


@pytest.mark.parametrize("text", [c2v_sim.__doc__, (ROOT / "docs/concepts.md").read_text()])
def test_the_files_named_are_there(text):
    named = set(re.findall(rf"(?<![\w/])((?:{'|'.join(ORDER)})/[\w/]+\.py)", text))
    assert len(named) >= 10
    assert [name for name in named if not (PACKAGE / name).is_file()] == []


def test_the_tests_mirror_the_rooms():
    folders = {p.name for p in (ROOT / "tests").iterdir() if p.is_dir() and any(p.glob("*.py"))}
    assert folders - {"support", "examples", "faults"} <= set(ORDER)


def test_kernels_import_nothing_of_the_package_but_one_another():
    for file in (ROOT / "kernels").glob("*.py"):
        imported = re.findall(r"^(?:import|from) (c2v_sim\S*)", file.read_text(), re.MULTILINE)
        assert all(name.startswith("c2v_sim.kernels") for name in imported), file.name
