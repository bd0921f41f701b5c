"""Every exception of the package, and how a command says what was wrong.

Bad input is a ValueError of some kind and ends a command with exit code 2 before anything is
written; a failure while training ends it with 1.
"""

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from c2v_sim.system.text import one_line

ERROR = "c2v_sim: error: "


class ConfigError(ValueError):
    """A setting that is unknown, out of range or contradicts another."""


class DataError(ValueError):
    """Missing, truncated or corrupt data: the message says what, what was expected, the remedy."""


class Unreachable(Exception):
    """A download could not be had for reasons of the network; the message is the reason."""


class InUse(ValueError):
    """Another live process works in the directory."""


class CheckpointError(ValueError):
    """No generation can be used; the message says why for each of them."""


class Interrupted(Exception):
    """Local training was asked to stop before it was done."""


class NoRoom(OSError):
    """Client state beyond the memory finds no space on disk; the message names size and folder."""

    def __str__(self) -> str:
        return str(self.strerror)


class RankLost(Exception):
    """Another rank of the run is gone, or did not answer in time."""


class TrainingError(RuntimeError):
    """Local training failed; the message names round, client and algorithm."""


# What helps where a file or folder cannot be read or written; nothing is known of other errors.
REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EFBIG: "free some space, or raise the limit of file sizes",
    errno.EACCES: "change its permissions",
    errno.EPERM: "change its permissions",
    errno.EROFS: "it is on a file system that can only be read",
    errno.ELOOP: "it is a symbolic link that leads back to itself; correct it",
    errno.ENOTDIR: "a part of its path is a file; correct it",
}


def remedy(error: OSError, before: str = "", otherwise: str = "") -> str:
    """What helps against `error`, or else what always helps; after `before`, or nothing at all."""
    known = (REMEDIES.get(error.errno or 0), otherwise)
    words = ", or ".join(filter(None, known))
    return f"{before}{words}" if words else ""


@contextmanager
def naming(where: object) -> Iterator[None]:
    """Says before every refusal of a setting where it stands; one that says so itself is kept."""
    try:
        yield
    except ConfigError as error:
        raise error if str(where) in str(error) else ConfigError(f"{where}: {error}") from error


def fail(code: int, message: str) -> int:
    """Say what was wrong, in one line; the exit code."""
    print(f"{ERROR}{one_line(message)}", file=sys.stderr, flush=True)
    return code
