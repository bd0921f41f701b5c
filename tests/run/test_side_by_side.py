"""Runs that begin in the same second, on the same cold caches: all of them end well."""

import os
import subprocess
import sys

FLAGS = [
    *("--train-size", "240", "--test-size", "60", "--clients", "8", "--participation", "0.25"),
    *("--partition", "iid", "--model", "linear", "--rounds", "1", "--local-epochs", "1"),
    *("--improve", "sampling", "--index-epochs", "1", "--index-dropout", "0"),
]
# Both wait until the other has come so far, and both take the same second for the time.
TOGETHER = """
import pathlib, sys, time
from c2v_sim.run import __main__ as run
from c2v_sim.run import build
from c2v_sim.index.encoders import embed
from c2v_sim.index import build as index_build

me, other = sys.argv[1:3]
del sys.argv[1:3]

def meet(name):
    pathlib.Path(f"{name}-{me}").touch()
    end = time.monotonic() + 120
    while not pathlib.Path(f"{name}-{other}").exists() and time.monotonic() < end:
        time.sleep(0.005)

def meeting(owner, name):
    whole = getattr(owner, name)
    def met(*arguments, **options):
        meet(name)
        return whole(*arguments, **options)
    setattr(owner, name, met)

class Noon:
    @staticmethod
    def now(_):
        return type("Time", (), {"strftime": lambda self, _: "noon"})()

build.datetime = Noon
meeting(embed, "_store")
meeting(index_build, "_keep")
meeting(run.run_directory, "make_directory")
sys.exit(run.main(sys.argv[1:]))
"""


def test_two_runs_in_the_same_second_on_the_same_cold_caches(tmp_path):
    environment = os.environ | {"C2V_DATA": str(tmp_path / "data"), "OMP_NUM_THREADS": "1"}
    runs = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", TOGETHER, *names, *FLAGS],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for names in (("a", "b"), ("b", "a"))
    ]
    errors = [process.communicate(timeout=300)[1] for process in runs]
    assert [process.returncode for process in runs] == [0, 0], errors
    assert not any("warning" in error for error in errors), errors
    made = sorted(p.name for p in (tmp_path / "runs").iterdir())
    assert made == ["noon-shapes-fedavg-0", "noon-shapes-fedavg-0-2"]
    first, second = ((tmp_path / "runs" / name / "model.safetensors").read_bytes() for name in made)
    assert first == second
    assert not list((tmp_path / "data").rglob("*.partial"))
