"""Standard output, which can be full or closed while everything else is well."""

import os
import sys
from collections.abc import Callable

from c2v_sim.system.errors import fail


def printed(show: Callable[[], object], saved: str) -> int:
    """Let `show` print to standard output; the exit code of a command that ends with it.

    saved: what is not lost where that fails, for the message.
    """
    try:
        show()
        sys.stdout.flush()
        return 0
    except OSError as error:
        _discard_the_rest()
        why = error.strerror or error
        return fail(1, f"the result cannot be printed to standard output ({why}); {saved}")


def _discard_the_rest() -> None:
    """What is still in the buffer would fail again when Python ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
