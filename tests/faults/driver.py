"""Makes file calls fail, one at a time, in whole runs: `python -P tests/faults/driver.py`.

    --points N   N points drawn from all of them; without it every one
    --jobs N     so many at the same time; without it one per core
    --only NAME  of one command: run, index, sweep or report
    --minutes N  no point is begun after that; the order is by chance, so that it is a sample
    --keep DIR   where the cases are made, and stay; without it a temporary folder. Given again,
                 it goes on with the points that were not tried there (of the same sources)

A point is (command, error, n): the command, in an empty folder and with cold caches, in which the
n-th call that changes a file (failing_calls.c) fails with ENOSPC, EIO or EACCES, fails with all
after it (the disk is full from then on), or in place of which the process is killed. Then the disk
is well again and the command is resumed, or given again if it had made nothing. Held against the
same command undisturbed:

- it ends with 0 and all its outputs have the right bits, or with a sentence and no traceback;
- the second time it ends with 0 and in the right bits;
- no temporary file is left after that, and nobody else's file has changed.

cases.py does it, in a process of its own whose calls can be made to fail.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def with_failing_calls(folder: Path) -> dict[str, str]:
    """The environment of a process whose calls can be made to fail."""
    library = folder / "failing_calls.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library)]
    subprocess.run([*command, str(HERE / "failing_calls.c"), "-ldl"], check=True)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    paths = os.pathsep.join([str(HERE), str(HERE.parent / "support")])
    return os.environ | threads | {"LD_PRELOAD": str(library), "PYTHONPATH": paths}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--points", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    with contextlib.ExitStack() as held:
        folder = arguments.keep or Path(held.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        numbers = [str(arguments.points), str(arguments.jobs)]
        options = [str(folder.resolve()), *numbers, arguments.only, str(arguments.minutes)]
        command = [sys.executable, "-P", str(HERE / "cases.py"), *options]
        return subprocess.run(command, env=with_failing_calls(folder)).returncode


if __name__ == "__main__":
    sys.exit(main())
