"""The tree tells the story: names agree everywhere."""

import re
from pathlib import Path

import pytest

import c2v_sim

ROOT = Path(__file__).parents[1]


def names(folder, pattern="*.py"):
    return {p.stem for p in (ROOT / folder).glob(pattern) if not p.stem.startswith("_")}


def test_every_kernel_has_an_operator_a_test_and_a_benchmark():
    operators, fused = names("c2v_sim/ops"), names("csrc/cpu", "*.cpp")
    assert names("kernels") == fused <= operators
    assert names("csrc/cuda", "*.cu") <= operators
    assert operators <= {n.removeprefix("test_") for n in names("tests/ops")}
    assert fused <= {n.removeprefix("bench_") for n in names("bench")}


@pytest.mark.parametrize("text", [c2v_sim.__doc__, (ROOT / "docs/concepts.md").read_text()])
def test_the_stages_named_are_files(text):
    stages = set(re.findall(r"^\W*\d+[abc]?\W+([\w/]+\.py)", text, flags=re.MULTILINE))
    assert len(stages) >= 8
    assert all((ROOT / "c2v_sim" / name).is_file() for name in stages)


def test_kernels_import_nothing_of_the_package_but_one_another():
    for file in (ROOT / "kernels").glob("*.py"):
        imported = re.findall(r"^(?:import|from) (c2v_sim\S*)", file.read_text(), re.MULTILINE)
        assert all(name.startswith("c2v_sim.kernels") for name in imported), file.name
