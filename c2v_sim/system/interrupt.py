"""Ctrl-C and SIGTERM: the first asks for an orderly end, the second ends at once.

    with Interrupt() as interrupt:
        ...                        # a signal raises KeyboardInterrupt, nothing is lost here
        interrupt.stop = event     # from now on a signal only sets the event
    exit code: interrupt.code (130 Ctrl-C, 143 SIGTERM)

A handler that sets an event cannot tear a state update in two, as an exception could.
"""

import contextlib
import os
import signal
import threading
from types import FrameType

from c2v_sim.system import ranks

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
    """The signal handlers of a command."""

    def __init__(self) -> None:
        self.stop: threading.Event | None = None
        self.number: int | None = None  # of the first signal
        self._previous: dict[int, object] = {}

    @property
    def code(self) -> int:
        """The exit code of an interrupted command, as shells have it."""
        return 128 + (self.number or signal.SIGINT)

    @property
    def word(self) -> str:
        return "terminated" if self.number == signal.SIGTERM else "interrupted"

    def __enter__(self) -> "Interrupt":
        # Python delivers signals to the main thread only; a program that calls a command from
        # another thread keeps its own handlers.
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, _: FrameType | None) -> None:
        first = self.number is None
        self.number = self.number or number
        if self.stop is None:
            raise KeyboardInterrupt
        if not first:
            _say("")  # leave the line of the progress bar
            os._exit(128 + number)
        self.stop.set()
        if ranks.is_first():
            _say("stopping after the steps in flight; Ctrl-C again quits at once")


def _say(line: str) -> None:
    """Straight to standard error: the handler may have come in the middle of a print."""
    with contextlib.suppress(OSError):  # standard error may be closed
        os.write(2, f"\n{line}\n".encode() if line else b"\n")
