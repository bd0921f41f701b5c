"""Ranks: the processes that share one run, started by torchrun; without it there is one, rank 0.

    with torchrun.joined():              # system/ranks/torchrun.py
        ranks.rank(), ranks.size()
        ranks.gather(value)              # what every rank has, in the order of the ranks
        ranks.broadcast(value)           # what rank 0 has
        ranks.from_first(work)           # rank 0 works, all have the result, or the error
        with ranks.same_fate(): ...      # if one rank fails or is stopped in it, all are

All of these must be called by all ranks in the same order; with one rank they do nothing. No sum is
made on the way (a sum's bits would depend on the number of ranks): values travel, and every rank
adds them in the order of the clients.
"""

import re
import socket
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from c2v_sim.system.errors import ConfigError, Interrupted, RankLost, TrainingError

T = TypeVar("T")


@dataclass(frozen=True)
class Group:
    """What this process knows of the ranks."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # on this host
    local_size: int = 1  # ranks on this host
    attempt: int = 0  # how often torchrun has started the ranks anew
    store: Any = None  # torch's TCPStore, which outlives a rank that is killed


_group = Group()


def rank() -> int:
    return _group.rank


def size() -> int:
    return _group.size


def is_first() -> bool:
    """Whether this rank writes and prints."""
    return _group.rank == 0


def local_rank() -> int:
    """The number of this rank among those of its host: that of its GPU."""
    return _group.local_rank


def local_size() -> int:
    """Ranks on this host, which share its cores and memory."""
    return _group.local_size


def attempt() -> int:
    """How often torchrun has started the ranks anew after one was killed."""
    return _group.attempt


def store() -> Any:
    """torch's store that all ranks reach, which outlives a rank that is killed; None with one."""
    return _group.store


def become(group: Group) -> None:
    """What this process is from now on (system/ranks/torchrun.py)."""
    global _group
    _group = group


# ---- values ---------------------------------------------------------------------------------


@contextmanager
def _speaking() -> Iterator[None]:
    """An exchange fails where a rank is gone or does not answer in time."""
    try:
        yield
    except RuntimeError as error:
        raise RankLost(f"rank {rank()} lost the others ({first_line(error)})") from error


def first_line(error: Exception) -> str:
    """What torch says, without the place in its sources and its advice."""
    line = re.sub(r"^\[\S*\.cc:\d+\] ", "", str(error).strip().splitlines()[0])
    return line.partition(". This is typically")[0].rstrip(".")


def gather(value: T) -> list[T]:
    """The value of every rank, in the order of the ranks; anything that can be pickled."""
    if _group.size == 1:
        return [value]
    import torch.distributed as dist

    values: list = [None] * _group.size
    with _speaking():
        dist.all_gather_object(values, value)
    return values


def broadcast(value: T) -> T:
    """The value of rank 0."""
    if _group.size == 1:
        return value
    import torch.distributed as dist

    box = [value]
    with _speaking():
        dist.broadcast_object_list(box, src=0)
    return box[0]


def any_of(flag: bool) -> bool:
    """Whether `flag` is true on any rank."""
    return any(gather(flag)) if _group.size > 1 else flag


# ---- fates ----------------------------------------------------------------------------------


class OfAnotherRank(Exception):
    """Where an error came from: the traceback of the rank that failed, as text."""


@dataclass(frozen=True)
class Failure:
    """How a rank failed, in a form that can travel."""

    rank: int
    host: str
    message: str
    interrupted: bool
    bad_input: bool
    trace: str | None  # of what went wrong; None where the message says all

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        cause = error.__cause__ if isinstance(error, TrainingError) else error
        kind = isinstance(error, ValueError | OSError)
        trace = None if cause is None or kind else "".join(traceback.format_exception(cause))
        text = str(error) if kind or isinstance(error, TrainingError) else repr(error)
        return cls(rank(), socket.gethostname(), text, isinstance(error, Interrupted), kind, trace)

    def raise_here(self, *, everywhere: bool) -> None:
        """The same on every rank; all of them have failed alike where it is `everywhere`."""
        if self.interrupted:
            raise Interrupted
        message = self.message if everywhere else f"rank {self.rank} on {self.host}: {self.message}"
        if self.bad_input:
            raise ConfigError(message)
        raise TrainingError(message) from (OfAnotherRank(self.trace) if self.trace else None)


@contextmanager
def same_fate() -> Iterator[None]:
    """All ranks leave the block, or all raise what the first of them has failed with.

    Inside there is no exchange: a rank that failed would not come to it.
    """
    if _group.size == 1:
        yield
        return
    failure = None
    try:
        yield
    except Exception as error:
        failure = Failure.of(error)
    _share_failures(gather(failure))


def _share_failures(fates: Sequence[Failure | None]) -> None:
    failures = [f for f in fates if f is not None]
    real = [f for f in failures if not f.interrupted] or failures
    if real:
        everywhere = len({f.message for f in real}) == 1 and len(real) == len(fates)
        real[0].raise_here(everywhere=everywhere)


def from_first(work: Callable[[], T]) -> T:
    """What `work` gives on rank 0, where alone it is called; its error is raised on all ranks."""
    if _group.size == 1:
        return work()
    result, failure = None, None
    if is_first():
        try:
            result = work()
        except Exception as error:
            failure = Failure.of(error)
    result, failure = broadcast((result, failure))
    if failure is not None:
        failure.raise_here(everywhere=True)
    return result  # type: ignore[return-value]


# ---- tensors --------------------------------------------------------------------------------


def share(*owned: tuple[Tensor, int]) -> None:
    """Overwrite each contiguous tensor by the one that its rank has: (tensor, rank), …"""
    if _group.size == 1:
        return
    import torch.distributed as dist

    with _speaking():
        sent = [dist.broadcast(_bytes(t), src=r, async_op=True) for t, r in owned if t.numel()]
        for one in sent:
            one.wait()


def pick(table: Tensor, owners: Sequence[int]) -> Tensor:  # [n, …] -> [n, …]
    """Row i as the rank `owners[i]` has it; for tables that are small."""
    if _group.size == 1 or not table.numel():
        return table
    import torch.distributed as dist

    own = table.contiguous()
    tables = [torch.empty_like(own) for _ in range(_group.size)]
    with _speaking():
        dist.all_gather([_bytes(t) for t in tables], _bytes(own))
    return torch.stack([tables[owner][i] for i, owner in enumerate(owners)])


def swap(given: Sequence[Tensor], taken: Sequence[Tensor]) -> None:
    """Overwrite `taken[r]` by what rank r gives to this one, `given[rank()]` there."""
    import torch.distributed as dist

    out = torch.cat([t.reshape(-1) for t in given])
    into = out.new_empty(sum(t.numel() for t in taken))
    sizes = [[t.numel() for t in tensors] for tensors in (taken, given)]
    with _speaking():
        dist.all_to_all_single(into, out, sizes[0], sizes[1])
    for tensor, part in zip(taken, into.split(sizes[0]), strict=True):
        tensor.copy_(part.view(tensor.shape))


def hand(tensor: Tensor, giver: int, taker: int) -> None:
    """Overwrite the contiguous tensor of rank `taker` by that of rank `giver`."""
    if giver == taker or rank() not in (giver, taker):
        return
    import torch.distributed as dist

    with _speaking():
        if rank() == giver:
            dist.send(_bytes(tensor), dst=taker)
        else:
            dist.recv(_bytes(tensor), src=giver)


def _bytes(tensor: Tensor) -> Tensor:
    """The same memory as bytes: no exchange depends on a type."""
    return tensor.detach().reshape(-1).view(torch.uint8)
