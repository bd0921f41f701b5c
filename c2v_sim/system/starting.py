"""Ctrl-C while a command is still importing its packages, which takes seconds: quiet, code 130.

Imported before all else in c2v_sim/__init__.py. Only where the process is one of our commands: a
program that imports the package keeps its own handling of signals.
"""

import os
import signal
import sys
import threading
from types import FrameType


def is_a_command() -> bool:
    """Whether Python was started as `python -m c2v_sim…` or as `c2v-sim`."""
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    if name == "-m":  # until the module is found
        return any(word.removeprefix("-m").split(".")[0] == "c2v_sim" for word in sys.orig_argv)
    return name.startswith("c2v-sim")


def quit_quietly(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def heard() -> bool:
    """Whether Ctrl-C would raise KeyboardInterrupt here; a shell ignores it in the background."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    return in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler


if is_a_command() and heard():
    signal.signal(signal.SIGINT, quit_quietly)
