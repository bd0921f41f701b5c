"""In a process of its own each time: the setting lasts as long as the process."""

import ctypes
import platform
import subprocess
import sys

import pytest

from c2v_sim.system.machine import keep_freed_memory

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")

# Page faults of twenty 40 MiB tensors, made and freed one after the other, in the main thread and
# in a second one. As many are made before counting: until freed neighbours have joined, an aligned
# block may not fit into a freed one of the same size.
PROGRAM = """
import resource, sys, threading
import torch
from c2v_sim.system.machine import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def count():
    for i in range(40):
        if i == 20:
            before = faults()
        torch.ones(10 * 2**20)
    print(faults() - before)

torch.set_num_threads(1)
if sys.argv[1] == "keep":
    assert keep_freed_memory()
count()
thread = threading.Thread(target=count)
thread.start()
thread.join()
"""


def page_faults(mode, program=PROGRAM):
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, mode], capture_output=True, text=True, check=True
    )
    return [int(line) for line in done.stdout.split()]


@glibc
def test_freed_memory_is_reused_in_every_thread():
    default = page_faults("default")
    if min(default) < 100_000:  # twenty tensors are 204,800 pages of 4 KiB
        pytest.skip(f"this system makes few page faults for large tensors anyway: {default}")
    kept = page_faults("keep")
    assert all(k < 0.1 * d for k, d in zip(kept, default, strict=True)), (kept, default)


# As one who embeds it: does a simulator, once made, let the process keep its memory?
OWN_PROGRAM = PROGRAM.replace(
    """if sys.argv[1] == "keep":
    assert keep_freed_memory()
""",
    """
from c2v_sim import Federation, RunConfig, Simulator
x = torch.randn(40, 3)
federation = Federation.from_arrays(x, (x[:, 0] > 0).long(), torch.arange(40) % 4)
keep = sys.argv[1] == "keep"
Simulator(federation, RunConfig(rounds=1), model=torch.nn.Linear(3, 2), keep_memory=keep).close()
""",
)


@glibc
def test_a_simulator_keeps_freed_memory_unless_told_not_to():
    assert OWN_PROGRAM != PROGRAM
    default = page_faults("default", OWN_PROGRAM)
    if min(default) < 100_000:
        pytest.skip(f"this system makes few page faults for large tensors anyway: {default}")
    kept = page_faults("keep", OWN_PROGRAM)
    assert all(k < 0.1 * d for k, d in zip(kept, default, strict=True)), (kept, default)


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert keep_freed_memory() is False
