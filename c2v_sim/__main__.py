"""`c2v-sim COMMAND …`, the same commands as `python -m c2v_sim.COMMAND …`."""

import importlib
import sys
from collections.abc import Callable

COMMANDS = {
    "run": "one federated run",
    "sweep": "a grid of runs, and their table",
    "tables": "the table of a sweep, beside the paper's",
    "index": "a vector for every client, before training",
    "report": "one HTML page about one run or many",
    "doctor": "which backends work here, and why others do not",
}


def _main_of(command: str) -> Callable[[list[str]], int]:
    room = f"c2v_sim.{command}"
    is_file = command in ("doctor", "tables")
    return importlib.import_module(room if is_file else f"{room}.__main__").main


def main() -> int:
    """Hand over to the command's module."""
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        print("usage: c2v-sim COMMAND …", *(f"  {n:<8}{t}" for n, t in COMMANDS.items()), sep="\n")
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    return _main_of(sys.argv[1])(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
