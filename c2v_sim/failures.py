"""NAME.failed beside a run directory NAME: a sweep gave up on this cell, and why.

A sweep writes it with the command, the exit code and the end of the log, and removes it when it
tries the cell again. NAME holds what was done before; where the cell failed before it began, for
lack of an index for example, there is no NAME.
"""

import json
from pathlib import Path
from typing import Any

ENDING = ".failed"


def failure_file(folder: Path) -> Path:
    """Where it stands that the run of this directory failed."""
    return folder.with_name(folder.name + ENDING)


def failure_reason(path: Path) -> str:
    """The first sentence of the last line that the failed run said, or its exit code."""
    facts = read_json(path)
    said = facts["log"][-1] if facts["log"] else f"exit code {facts['exit_code']}"
    return said.removeprefix("c2v_sim: error: ").split(". ")[0]


def read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
