"""NAME.failed beside a run directory NAME: a sweep gave up on this cell, and why.

A sweep writes the file with the command, the exit code and the end of the log, and removes it when
it tries the cell again. NAME holds what was done before; where the cell failed before it began, for
lack of an index for example, there is no NAME.
"""

import signal
from pathlib import Path

from c2v_sim.run.files import read_json
from c2v_sim.system.errors import ERROR

ENDING = ".failed"


def failure_file(folder: Path) -> Path:
    """Where it stands that the run of this directory failed."""
    return folder.with_name(folder.name + ENDING)


def failure_reason(path: Path) -> str:
    """Why the run ended: what the file says."""
    facts = read_json(path)
    return reason(facts["exit_code"], facts["log"])


def reason(code: int, log: list[str]) -> str:
    """The first sentence of the error that a run ended with; the signal that killed it, or else
    its exit code and last line."""
    if code < 0:
        name = signal.Signals(-code).name
        return f"killed by {name}" + (", perhaps for want of memory" if name == "SIGKILL" else "")
    last = log[-1] if log else ""
    if last.startswith(ERROR):
        return last.removeprefix(ERROR).split(". ")[0]
    return f"exit code {code}" + (f": {last}" if last else "")
