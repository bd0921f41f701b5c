"""Lanes: how many clients train at the same time.

A lane trains one client at a time in memory of its own. On the CPU a lane is a thread with one
intra-op thread: torch releases the interpreter lock inside its operators, and results of
one-thread operators do not depend on what other lanes do, so any number of lanes gives the same
bits. On a GPU (training/cuda_lane.py) the thread has a stream besides.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import TypeVar

import torch
from torch import nn

from c2v_sim.system import ranks
from c2v_sim.system.machine import free_memory, intra_op_threads, usable_cores
from c2v_sim.training.arena import Layout, copy_of
from c2v_sim.training.cuda_lane import CudaLane
from c2v_sim.training.lane import Lane

Item = TypeVar("Item")
Result = TypeVar("Result")

LANES: dict[str, Callable[[nn.Module, Layout, torch.device], Lane]] = {
    "cpu": Lane,
    "cuda": CudaLane,
}
MOST_ON_A_GPU = 8  # lanes; further streams would only queue for the same multiprocessors
STREAMS = 32  # that torch has for a GPU; one more lane would get the stream of the first


def lane_count(
    requested: int, device: torch.device, lane_bytes: Callable[[], int], cohort: int
) -> int:
    """`requested`, or for 0 one lane per usable core (CPU), or what a GPU has memory for; never
    more than the clients of a `cohort`.

    Ranks of one host share its cores. On a GPU lanes of `lane_bytes()` each get half of what is
    free, the rest is for client rows; of these no more than it takes for as many clients one after
    another on each: 10 clients take two turns on 5 lanes as on 8.
    """
    if device.type == "cuda" and requested > STREAMS:
        raise ValueError(
            f"lanes must be at most {STREAMS} on a GPU, where torch has no more streams, got "
            f"{requested}; about {MOST_ON_A_GPU} keep one busy"
        )
    if requested:
        return min(requested, cohort)
    if device.type == "cpu":
        return min(max(1, usable_cores() // ranks.local_size()), cohort)
    most = max(1, min(MOST_ON_A_GPU, free_memory(device) // (2 * lane_bytes())))
    here = -(-cohort // ranks.size())
    turns = -(-here // most)
    return -(-here // turns)


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
        make_lane = LANES[device.type]
        self._lanes = [make_lane(copy_of(model, layout), layout, device) for _ in range(count)]
        # A thread keeps its lane for good: cuBLAS and cuDNN set themselves up in every
        # thread, and that must have happened there before a step can be recorded.
        self._own = threading.local()
        self._free: queue.SimpleQueue[Lane] = queue.SimpleQueue()
        for lane in self._lanes:
            self._free.put(lane)
        self._threads = ThreadPoolExecutor(count, "lane", initializer=self._take_lane)

    def _take_lane(self) -> None:
        torch.set_num_threads(1)
        self._own.lane = self._free.get_nowait()

    @property
    def pads(self) -> bool:
        """Whether its lanes want last batches padded."""
        return self._lanes[0].pads

    @property
    def recorded(self) -> int:
        """How many kinds of step its lanes have recorded (training/cuda_lane.py)."""
        return sum(lane.recorded for lane in self._lanes)

    def stopped(self) -> bool:
        """Whether lanes should leave off: the caller wants to stop, or another lane failed."""
        return self._stop.is_set() or self._failed.is_set()

    def run(
        self, work: Callable[[Lane, Item], Result], items: Sequence[Item]
    ) -> Iterator[tuple[Item, Result]]:
        """Yield (item, work(lane, item)) as they finish; items start in the given order.

        An error in a lane, or one raised while waiting, stops the others after their current
        step and is raised. Tensors that lanes have written are the caller's after the last item.
        """

        def on_own_lane(item: Item) -> Result:
            with self._own.lane.working():
                return work(self._own.lane, item)

        self._failed.clear()
        for lane in self._lanes:
            lane.follow()
        with intra_op_threads(1):
            futures: dict[Future[Result], Item] = {}
            try:
                for item in items:
                    futures[self._threads.submit(on_own_lane, item)] = item
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
                for lane in self._lanes:
                    lane.join()

    def close(self) -> None:
        self._failed.set()
        self._threads.shutdown(wait=True, cancel_futures=True)
