"""How the threads of one operator wait for each other: they spin for microseconds, then sleep.

GNU's OpenMP, which torch's CPU builds bring along, lets them spin for milliseconds. That is as
quick while every thread has a core for itself, and half as quick as soon as somebody else wants
one: the thread that spins then holds the core that the one it waits for needs
(bench/waiting_threads.py). No bit of a result depends on it.

The library reads the setting when it is loaded, which is when torch is first imported: c2v_sim
imports this module before anything else. A program that imports torch before c2v_sim keeps the
long spin, and so does one whose user has set OMP_WAIT_POLICY or GOMP_SPINCOUNT.
"""

import os
import sys

SPINS = "GOMP_SPINCOUNT"
FEW = "1000"
OF_THE_USER = (SPINS, "OMP_WAIT_POLICY")


def load_torch() -> None:
    """Import torch with threads that spin shortly, unless torch or the user has decided already."""
    if "torch" in sys.modules or any(name in os.environ for name in OF_THE_USER):
        return
    os.environ[SPINS] = FEW
    try:
        import torch  # noqa: F401
    finally:
        del os.environ[SPINS]  # processes that this one starts decide for themselves


load_torch()
