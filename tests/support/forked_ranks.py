"""Ranks as torchrun would start them, forked from a process that has imported everything.

A process costs a fraction of a second instead of the seconds that importing torch takes. As with
torchrun, the store in which the ranks meet lies outside of them and outlives them.
"""

import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        return taken.getsockname()[1]


def fork(work: Callable[[], int], log: Path | None = None, **environment: object) -> int:
    """Run `work` in a new process, whose exit code it gives; the process's id."""
    process = os.fork()
    if process:
        return process
    if log is not None:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
    os.environ.update({name: str(value) for name, value in environment.items()})
    code = 99
    try:
        code = work()
    except SystemExit as end:  # of argparse
        code = end.code
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        for stream in (sys.__stdout__, sys.__stderr__):
            stream.flush()
        os._exit(code)


class Store:
    """A process that does nothing but hold the store."""

    def __init__(self, enter: Callable[[], None] = lambda: None) -> None:
        """enter: called first in the process, to be elsewhere."""
        self.port, self._enter = free_port(), enter
        self.process = fork(self._hold)

    def _hold(self) -> int:
        self._enter()
        store = dist.TCPStore("localhost", self.port, is_master=True, wait_for_workers=False)
        signal.pause()  # until it is ended
        return store.num_keys()

    def end(self) -> None:
        os.kill(self.process, signal.SIGKILL)
        wait(self.process)


def start_ranks(
    size: int,
    work: Callable[[], int],
    log: Path | None = None,
    store: Store | None = None,
    **environment: object,
) -> tuple[list[int], Store]:
    """Fork `size` ranks that do `work`; their ids, and the store in which they meet."""
    store = store or Store()
    port = store.port
    common = {
        "WORLD_SIZE": size,
        "LOCAL_WORLD_SIZE": size,
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": port,
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    } | environment
    return [fork(work, log, RANK=r, LOCAL_RANK=r, **common) for r in range(size)], store


def wait(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def run_ranks(size: int, work: Callable[[], int], log: Path | None = None, **env: object) -> list:
    """The exit codes of `size` ranks."""
    processes, store = start_ranks(size, work, log, **env)
    codes = [wait(process) for process in processes]
    store.end()
    return codes
