"""Ranks as torchrun would start them, forked from a process that has imported everything.

A process costs a fraction of a second instead of the seconds that importing torch takes. As with
torchrun, the store in which the ranks meet lies outside of them and outlives them.
"""

import os
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
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        for stream in (sys.__stdout__, sys.__stderr__):
            stream.flush()
        os._exit(code)


def host_store(port: int) -> int:
    """A process that does nothing but hold the store; its id."""

    def hold() -> int:
        ready, _ = dist.TCPStore("localhost", port, is_master=True, wait_for_workers=False), None
        os.read(end, 1)  # until the caller closes the pipe or ends
        del ready
        return 0

    end, begin = os.pipe()
    process = os.fork()
    if process:
        os.close(end)
        HELD[process] = begin
        return process
    os.close(begin)
    hold()
    os._exit(0)


HELD: dict[int, int] = {}  # process -> the end of its pipe


def start_ranks(
    size: int, work: Callable[[], int], log: Path | None = None, **environment: object
) -> tuple[list[int], int]:
    """Fork `size` ranks that do `work`; their ids, and that of the process with the store."""
    port = free_port()
    store = host_store(port)
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


def end_store(store: int) -> None:
    os.close(HELD.pop(store))
    wait(store)


def run_ranks(size: int, work: Callable[[], int], log: Path | None = None, **env: object) -> list:
    """The exit codes of `size` ranks."""
    processes, store = start_ranks(size, work, log, **env)
    codes = [wait(process) for process in processes]
    end_store(store)
    return codes
