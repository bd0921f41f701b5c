"""Lanes: how many clients train at the same time, one a core.

A lane trains one client at a time in memory of its own. On the CPU a lane is a thread with one
intra-op thread: torch releases the interpreter lock inside its operators, and results of
one-thread operators do not depend on what other lanes do, so any number of lanes gives the same
bits.
"""

import copy
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import TypeVar

import torch
from torch import Tensor, nn

from c2v_sim.arena import Layout
from c2v_sim.local_client import LocalClient
from c2v_sim.threads import intra_op_threads, usable_cores

Item = TypeVar("Item")
Result = TypeVar("Result")
Step = Callable[[Tensor], None]  # takes the sample ids of a batch


def lane_count(requested: int, device: torch.device) -> int:
    """`requested`, or for 0 one lane a usable core (CPU) and one in all (CUDA)."""
    if requested:
        return requested
    if device.type != "cpu":
        return 1
    return usable_cores()


class Lane:
    """A seat for one client at a time, and how its steps are carried out."""

    def __init__(self, module: nn.Module, layout: Layout, device: torch.device) -> None:
        self.client = LocalClient(module, layout, device)

    def step(self, step: Step, ids: Tensor) -> None:
        """One local step on the samples `ids`."""
        step(ids)


class Lanes:
    """A fixed set of lanes; `run` spreads items over them, first come first served.

    `stop` is the caller's wish to end early; lanes look at `stopped()` between steps.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        count: int,
        device: torch.device,
        stop: threading.Event | None = None,
    ) -> None:
        self.count = count
        self._stop = stop or threading.Event()
        self._failed = threading.Event()
        self._free: queue.SimpleQueue[Lane] = queue.SimpleQueue()
        for _ in range(count):
            self._free.put(Lane(copy.deepcopy(model), layout, device))
        self._threads = ThreadPoolExecutor(
            count, "lane", initializer=torch.set_num_threads, initargs=(1,)
        )

    def stopped(self) -> bool:
        """Whether lanes should leave off: the caller wants to stop, or another lane failed."""
        return self._stop.is_set() or self._failed.is_set()

    def run(
        self, work: Callable[[Lane, Item], Result], items: Sequence[Item]
    ) -> Iterator[tuple[Item, Result]]:
        """Yield (item, work(lane, item)) as they finish; items start in the given order.

        An error in a lane, or one raised while waiting, stops the others after their current
        step and is raised.
        """

        def on_free_lane(item: Item) -> Result:
            lane = self._free.get()
            try:
                return work(lane, item)
            finally:
                self._free.put(lane)

        self._failed.clear()
        with intra_op_threads(1):
            futures: dict[Future[Result], Item] = {}
            try:
                for item in items:
                    futures[self._threads.submit(on_free_lane, item)] = item
                for future in as_completed(futures):
                    yield futures[future], future.result()
            except BaseException:
                self._failed.set()
                for future in futures:
                    future.cancel()
                raise
            finally:
                for future in futures:
                    if not future.cancelled():
                        future.exception()  # wait: no lane may still write when this returns

    def close(self) -> None:
        self._failed.set()
        self._threads.shutdown(wait=True, cancel_futures=True)
