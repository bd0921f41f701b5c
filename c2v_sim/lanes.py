"""Lanes: how many clients train at the same time, one a core.

A lane owns a module that it binds to arena rows, a gradient row and the optimiser's rows. On the
CPU a lane is a thread with one intra-op thread: torch releases the interpreter lock inside its
operators, and results of one-thread operators do not depend on what other lanes do, so any number
of lanes gives the same bits.
"""

import copy
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import TypeVar

import torch
from torch import Tensor, nn

from c2v_sim.arena import BoundModule, Layout
from c2v_sim.dropout import use_own_generators
from c2v_sim.threads import intra_op_threads, usable_cores

Item = TypeVar("Item")
Result = TypeVar("Result")


def lane_count(requested: int, device: torch.device) -> int:
    """`requested`, or for 0 one lane a usable core (CPU) and one in all (CUDA)."""
    if requested:
        return requested
    if device.type != "cpu":
        return 1
    return usable_cores()


class Lane:
    """What one concurrent training needs for itself."""

    def __init__(self, module: nn.Module, layout: Layout, device: torch.device) -> None:
        self._random = use_own_generators(module)
        self.model = BoundModule(module, layout, device)
        self._buffers: dict[str, Tensor] = {}

    def buffer(self, name: str) -> Tensor:
        """A row of zeros for the optimiser, [trainable]; the memory is the lane's for good."""
        if name not in self._buffers:
            self._buffers[name] = torch.empty_like(self.model.gradients)
        return self._buffers[name].zero_()

    def seed(self, seed: int, device: torch.device) -> torch.Generator:
        """A new generator for one participation: dropout and augmentation draw from it."""
        generator = torch.Generator(device).manual_seed(seed)
        for module in self._random:
            module.generator = generator  # type: ignore[assignment]
        return generator


class Lanes:
    """A fixed set of lanes; `run` spreads items over them, first come first served."""

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        count: int,
        device: torch.device,
        stop: threading.Event | None = None,
    ) -> None:
        """`stop` is the caller's wish that training ends; it is only looked at."""
        self.count = count
        self._wish, self._failed = stop or threading.Event(), threading.Event()
        self._free: queue.SimpleQueue[Lane] = queue.SimpleQueue()
        for _ in range(count):
            self._free.put(Lane(copy.deepcopy(model), layout, device))
        self._threads = ThreadPoolExecutor(
            count, "lane", initializer=torch.set_num_threads, initargs=(1,)
        )

    def stopped(self) -> bool:
        """Whether training should end; work that is long asks between its steps."""
        return self._failed.is_set() or self._wish.is_set()

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
