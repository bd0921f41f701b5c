"""The package as others get it: sdist and wheel, outside the checkout and without a compiler.

The environment is empty but for the wheel. torch and the other dependencies are lent to it by the
environment of the tests, through a .pth file, so that they are not downloaded a second time;
c2v_sim is the wheel's.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import setuptools

ROOT = Path(__file__).parents[1]
FOLDERS = ("c2v_sim", "csrc", "kernels")
FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
TINY = "--model linear --train-size 400 --test-size 100 --clients 8 --participation 0.5 --rounds 2"
TINY += " --local-epochs 1 --batch-size 16 --index feature-average --out run"
FACTS = """
import json, shutil, c2v_sim
from c2v_sim.ops._dispatch import native_missing
print(json.dumps([c2v_sim.__file__, native_missing, shutil.which("g++"), shutil.which("cc")]))
"""
HIDE = """
import runpy, setuptools, sys
from importlib.util import find_spec
sys.path[:] = [path for path in sys.path if not path.endswith("site-packages")]
"""


def run(*command, cwd, **variables):
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=variables or None, capture_output=True, text=True,
        timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """What a build needs, without what earlier builds left in the checkout."""
    out = tmp_path_factory.mktemp("sources")
    for name in FOLDERS:
        left = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / name, out / name, ignore=left)
    for name in FILES:
        shutil.copy(ROOT / name, out / name)
    return out


@pytest.fixture(scope="module")
def built(sources, tmp_path_factory):
    """The folder of sdist and wheel, as `make wheel` makes them: the wheel from the sdist."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not on PATH")
    out = tmp_path_factory.mktemp("dist")
    command = (sys.executable, "-P", "-m", "build", "--no-isolation", "--outdir", out, sources)
    run(*command, cwd=out, **os.environ | {"C2V_SIM_REQUIRE_NATIVE": "1"})
    return out


class Environment:
    """An environment with a wheel, whose programs find no compiler and no checkout."""

    def __init__(self, folder: Path, wheel: Path):
        self.folder = folder
        run(sys.executable, "-m", "venv", "--without-pip", folder / "env", cwd=folder)
        self.python = folder / "env" / "bin" / "python"
        pip = (sys.executable, "-m", "pip", "--python", self.python, "install")
        run(*pip, "--no-index", "--no-deps", wheel, cwd=folder)
        (site,) = (folder / "env" / "lib").glob("python*/site-packages")
        lent = [path for path in sys.path if path.endswith("site-packages")]
        (site / "lent.pth").write_text("\n".join(lent))

    def __call__(self, *command):
        variables = {"PATH": str(self.python.parent), "HOME": str(self.folder)}
        variables |= {"C2V_DATA": str(self.folder / "data"), "OMP_NUM_THREADS": "1"}
        return run(*command, cwd=self.folder, **variables)

    def facts(self):
        """(c2v_sim's file, why there are no native operators, g++, cc)"""
        return json.loads(self(self.python, "-c", FACTS).stdout)


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    (wheel,) = built.glob("*.whl")
    return Environment(tmp_path_factory.mktemp("installed"), wheel)


def test_the_sdist_has_what_a_build_needs_and_no_more(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {str(Path(*Path(name).parts[1:])) for name in archive.getnames()}
    wanted = {
        str(p.relative_to(ROOT))
        for folder in FOLDERS
        for p in (ROOT / folder).rglob("*")
        if p.is_file() and "__pycache__" not in p.parts and p.suffix != ".so"
    }
    assert wanted | set(FILES) <= names
    assert {name.split("/")[0] for name in names} - {*FOLDERS, *FILES} == {
        ".", "PKG-INFO", "setup.cfg", "c2v_sim.egg-info",
    }  # fmt: skip


def test_the_wheel_serves_every_python_and_torch_that_is_allowed(built):
    (wheel,) = built.glob("*.whl")
    assert re.search(r"-cp311-abi3-\w+\.whl$", wheel.name)
    metadata = run(sys.executable, "-m", "zipfile", "-l", wheel, cwd=built).stdout
    assert "c2v_sim/_C.abi3.so" in metadata
    assert "c2v_sim/kernels/weighted_sum.py" in metadata


def test_native_operators_come_from_the_wheel(installed):
    file, missing, *compilers = installed.facts()
    assert Path(file).is_relative_to(installed.folder)
    assert missing is None
    assert compilers == [None, None]


def test_the_main_command_compares_two_runs(installed):
    done = installed("c2v-sim", "run", "--beside-original", *TINY.split())
    assert "torch references run instead" not in done.stderr
    made = {path.name for path in (installed.folder / "run").iterdir()}
    assert {"original", "client2vec", "comparison.md", "comparison.json"} <= made


def test_the_example_of_the_readme_runs(installed):
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (installed.folder / "example.py").write_text(example)
    assert "best accuracy" in installed(installed.python, "example.py").stdout


def test_without_torch_it_is_built_without_native_operators_and_says_so(sources, tmp_path):
    """As `pip install` does it where torch is not there yet; setuptools alone is lent to it."""
    run(sys.executable, "-m", "venv", "--without-pip", "empty", cwd=tmp_path)
    (tmp_path / "lent").mkdir()
    site = Path(setuptools.__file__).parents[1]
    for part in (*site.glob("setuptools*"), site / "_distutils_hack"):  # with its entry points
        (tmp_path / "lent" / part.name).symlink_to(part)
    command = (tmp_path / "empty/bin/python", "setup.py", "-q", "bdist_wheel", "-d", tmp_path)
    copy = shutil.copytree(sources, tmp_path / "sources")
    said = run(*command, cwd=copy, PYTHONPATH=str(tmp_path / "lent"), PATH=os.environ["PATH"])
    assert "torch is not installed yet, so the native operators are NOT built" in said.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    installed = Environment(tmp_path, wheel)
    _, missing, *_ = installed.facts()
    assert "torch or g++ was missing when the package was installed" in missing
    done = installed("c2v-sim", "run", "--improve", "none", *TINY.split()[:-4], "--out", "run")
    assert f"torch references run instead of the native operators: {missing}" in done.stderr


def test_a_build_from_which_pip_hides_torch_finds_it(installed, sources):
    """pip takes the environment's packages off the path; the interpreter is the environment's."""
    hidden = installed(installed.python, "-c", HIDE + "print(find_spec('torch'))")
    assert hidden.stdout == "None\n"
    ask = f"print(runpy.run_path({str(sources / 'setup.py')!r})['torch_is_found']())"
    assert installed(installed.python, "-c", HIDE + ask).stdout == "True\n"


@pytest.fixture(scope="module")
def set_up():
    spec = importlib.util.spec_from_file_location("set_up", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("torch_cuda", "nvcc", "reason"),
    [
        (None, "13.0", "a build without CUDA"),
        ("13.2", "13.0", None),  # the major version counts
        ("12.8", "13.0", "nvcc 13.0 does not fit torch's CUDA 12.8"),
        ("13.2", "12.4", "nvcc 12.4 does not fit torch's CUDA 13.2"),
        ("13.2", "", "nvcc of an unknown version does not fit"),
    ],
)
def test_an_nvcc_that_does_not_fit_costs_the_cuda_operators_alone(
    set_up, tmp_path, torch_cuda, nvcc, reason
):
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "nvcc"
    script.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {nvcc}, V{nvcc}'\n")
    script.chmod(0o755)
    said = set_up.why_no_cuda(torch_cuda, str(tmp_path))
    assert said is None if reason is None else reason in said
    assert "no nvcc was found" in set_up.why_no_cuda("13.2", None)
    assert "nvcc does not start" in set_up.why_no_cuda("13.2", str(tmp_path / "elsewhere"))
