"""How ranks come about: torchrun starts the processes, which meet here, speak, and end together.

    torchrun --nproc-per-node 4 -m c2v_sim.run …    # every process: `joined`, then system/ranks
    python -m c2v_sim.run --ranks 4 …               # `launch` starts the same

Without torchrun torch.distributed is not initialised.
"""

import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from datetime import timedelta

import torch

from c2v_sim.system import ranks
from c2v_sim.system.errors import ERROR, ConfigError, RankLost
from c2v_sim.system.ranks import Group, first_line

SECONDS = 1800.0  # that a rank waits for another, unless told otherwise
SECONDS_BETWEEN_CHECKS = 0.5  # whether a rank has ended
SECONDS_TO_ASK = 10.0  # the other ranks who is to speak


def started_this() -> bool:
    """Whether torchrun, or whoever sets the same variables, has started this process."""
    return {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()


def started_with() -> int | None:
    """How many ranks torchrun has started; None where it did not."""
    return int(os.environ["WORLD_SIZE"]) if started_this() else None


def is_first_of_host() -> bool:
    return os.environ.get("LOCAL_RANK", "0") == "0"


@contextmanager
def quiet_but_once() -> Iterator[None]:
    """What all ranks would print inside is printed by the first of a host."""
    if is_first_of_host():
        yield
        return
    with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
        yield


@contextmanager
def joined(timeout: float = SECONDS) -> Iterator[None]:
    """Be one of the ranks inside, where torchrun has started several; alone otherwise.

    timeout: seconds that a rank waits for the others, to meet them and at every exchange.
    """
    if not started_this() or os.environ["WORLD_SIZE"] == "1":
        yield
        return
    ranks.become(_join(timedelta(seconds=timeout)))
    try:
        with _quiet_unless_first():
            yield
    finally:
        _leave()
        ranks.become(Group())


def _join(timeout: timedelta) -> Group:
    import torch.distributed as dist

    number, count, port = (int(os.environ[n]) for n in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    local, on_host = (int(os.environ.get(f"LOCAL_{n}", d)) for n, d in _ALONE.items())
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    host, here = os.environ["MASTER_ADDR"], socket.gethostname()
    hosts_store = number == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        if not hosts_store:
            _wait_until_reachable(host, port, timeout.total_seconds())
        server = dist.TCPStore(host, port, is_master=hosts_store, timeout=timeout)
        store = dist.PrefixStore("c2v_sim", server)
        own = dist.PrefixStore(f"attempt {attempt}", store)
        dist.init_process_group(backend, store=own, rank=number, world_size=count, timeout=timeout)
    except (RuntimeError, OSError) as error:
        raise ConfigError(
            f"rank {number} on {here} did not meet the other {count - 1} at {host}:{port} within "
            f"{timeout.total_seconds():g} s ({first_line(error)}). Start as many ranks as torchrun "
            "was told, see that this address can be reached, or raise --rank-timeout"
        ) from error
    return Group(number, count, local, on_host, attempt, store)


def _wait_until_reachable(host: str, port: int, seconds: float) -> None:
    """OSError where nobody listens there in time; torch would print where in its code it waited."""
    end = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, port), timeout=seconds).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(SECONDS_BETWEEN_CHECKS)


_ALONE = {"RANK": 0, "WORLD_SIZE": 1}


def _leave() -> None:
    """A rank that ends early closes its connections, which wakes those who wait for it."""
    import torch.distributed as dist

    with suppress(RuntimeError):
        dist.destroy_process_group()


@contextmanager
def _quiet_unless_first() -> Iterator[None]:
    """Nothing is printed inside but by rank 0."""
    if ranks.is_first():
        yield
        return
    streams = sys.stdout, sys.stderr
    with open(os.devnull, "w") as nowhere:
        sys.stdout = sys.stderr = nowhere
        try:
            yield
        finally:
            sys.stdout, sys.stderr = streams


# ---- the last word --------------------------------------------------------------------------


def run_as_rank(work: Callable[[], int]) -> int:
    """The exit code of `work`; whatever ends it is told once, by one rank."""
    if ranks.size() == 1:
        return work()
    try:
        code = work()
    except Exception as error:
        return tell(1, error, "Nothing was trained")
    if code and ranks.is_first():
        _may_tell()  # it is told: those who find that this rank is gone need not say so
    return code


def tell(code: int, error: Exception, then: str) -> int:
    """Say what ended the run and what `then`, unless another rank has; the exit code."""
    if not _may_tell():
        return code
    message = str(error)
    if not isinstance(error, RankLost):
        traceback.print_exception(error, file=sys.__stderr__)
        message = f"rank {ranks.rank()} on {socket.gethostname()}: {error!r}"
    print(f"{ERROR}{message}. {then}", file=sys.__stderr__, flush=True)
    return code


def _may_tell() -> bool:
    """True for the first rank that asks; where the others cannot be asked any more, on each host
    for its first rank."""
    store, answers = ranks.store(), list[bool]()
    if store is None:
        return True

    def ask() -> None:
        with suppress(RuntimeError):
            answers.append(store.add(f"told {ranks.attempt()}", 1) == 1)

    # A host that is cut off would wait for the answer for ever.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(SECONDS_TO_ASK)
    return answers[0] if answers else is_first_of_host()


def remember(name: str, value: str) -> None:
    """Keep a text for the ranks that torchrun may start anew."""
    if ranks.store() is not None:
        ranks.store().set(name, value)


def remembered(name: str) -> str | None:
    """What an earlier attempt told to `remember`; None in the first attempt."""
    if not ranks.attempt() or not ranks.store().check([name]):
        return None
    return ranks.store().get(name).decode()


# ---- starting -------------------------------------------------------------------------------


def launch(count: int, command: list[str], max_restarts: int, patience: float) -> int:
    """Run `command` (of this interpreter) as `count` ranks on this host; the exit code.

    max_restarts: how often all are started anew after one was killed. patience: seconds that they
    get to end in order.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the ranks speak
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does; lanes have one thread anyway
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=max_restarts,
        monitor_interval=SECONDS_BETWEEN_CHECKS,
        shutdown_timeout=int(patience),
    )
    try:
        elastic_launch(config, sys.executable)(*(["-P"] if sys.flags.safe_path else []), *command)
    except ChildFailedError as error:
        number, failure = error.get_first_failure()
        if failure.exitcode < 0:
            name = signal.Signals(-failure.exitcode).name
            print(f"c2v_sim: rank {number} was killed by {name}", file=sys.stderr, flush=True)
            return 1
        return failure.exitcode
    except SignalException as error:
        return 128 + error.sigval
    return 0
