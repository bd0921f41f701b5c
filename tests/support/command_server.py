"""Real commands in real processes, cheaply: imports everything once and forks for each of them.

`Commands` starts this file as a process; it reads lines of JSON (module, arguments, folder, names)
and answers each with the exit code. The child has the arguments in sys.argv and ends by sys.exit,
as under `python -m`; its address space and its seconds are limited. Functions of the module by
these names are left out: they answer 0.
"""

import importlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

MODULES = ("c2v_sim.run.__main__", "c2v_sim.index.__main__", "c2v_sim.sweep.__main__")
MODULES += ("c2v_sim.report.__main__",)
SECONDS, BYTES = 60, 6 * 10**9


class Commands:
    """The server, while the block runs."""

    def __enter__(self) -> "Commands":
        self.process = subprocess.Popen(
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"MPLBACKEND": "agg"},
        )
        return self

    def __exit__(self, *error: object) -> None:
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def call(
        self, module: str, arguments: list[str], folder: Path, without: Sequence[str] = ()
    ) -> tuple[int, str, str]:
        """Exit code, standard output and error."""
        line = json.dumps([f"c2v_sim.{module}.__main__", arguments, str(folder), [*without]])
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        code = int(self.process.stdout.readline())
        texts = (Path(f"{folder}.{name}").read_text(errors="replace") for name in ("out", "err"))
        return code, *texts


def serve() -> None:
    modules = {name: importlib.import_module(name) for name in MODULES}
    for line in sys.stdin.buffer:
        name, arguments, folder, without = json.loads(line)
        child = os.fork()
        if child == 0:
            vars(modules[name]).update({f: lambda *a, **k: 0 for f in without})
            _become(modules[name], arguments, folder)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(module: object, arguments: list[str], folder: str) -> None:
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{folder}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.chdir(folder)
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    # Seconds of work, as the machine may be busy; the default action of both ends the process.
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.alarm(20 * SECONDS)
    sys.argv = [module.__file__, *arguments]
    code = 1
    try:
        sys.exit(module.main())
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
