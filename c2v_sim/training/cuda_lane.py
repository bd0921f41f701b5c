"""A lane on a GPU: a stream of its own, and the whole local step as a CUDA graph.

A step (gather → normalise → forward → backward → optimiser) is hundreds of small launches; as a
graph it is one. For each kind of step, that is (batch length, client.variant):

    the first runs as it is, on the lane's stream: a real step, and the warm-up of the second
    the second is recorded, which runs nothing, and replayed
    every later one is replayed

so a partial last batch is recorded only if its length comes again. An algorithm or a module with
capturable = False is never recorded: its steps run one operator at a time. `prepare` is told the
version of what the steps are made of; recorded steps of another version are of no use.

A graph knows addresses, not objects. It is right for every client because all that a step reads
or writes keeps its address for the life of the lane (LocalClient, client.memory) or of the run
(data, the global row). Evaluation binds the lane's module to the global row meanwhile; the next
client's participation binds it to the lane's own row again, which has not moved.

Nothing here waits for the GPU, except that recording does, a few times in a lane's life.
"""

import threading
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from c2v_sim.training.arena import Layout
from c2v_sim.training.lane import Lane, Step

_recording = threading.Lock()  # a process can record one graph at a time


@dataclass
class Recorded:
    """One kind of step."""

    ids: Tensor  # where the graph finds the samples of the batch
    graph: torch.cuda.CUDAGraph | None = None
    step: Step | None = None  # what was recorded: keeps the memory alive that the graph points to


class CudaLane(Lane):
    """`cuda` is torch.cuda, or what stands in for it where there is no GPU."""

    def __init__(
        self, module: nn.Module, layout: Layout, device: torch.device, cuda: Any = torch.cuda
    ) -> None:
        super().__init__(module, layout, device)
        self._cuda = cuda
        self._stream = cuda.Stream(device)
        self._capturable = all(getattr(part, "capturable", True) for part in module.modules())
        self._version = 0  # of what the recorded steps are made of
        self._eager = False
        self._steps: dict[tuple[int, object], Recorded] = {}

    def prepare(self, version: int, *, capturable: bool) -> None:
        """Graphs of another version are forgotten."""
        self._eager = not (self._capturable and capturable)
        if version == self._version:
            return
        self._version, self._steps = version, {}
        # Graphs that share a pool use the same memory for their activations, so no two of them
        # may run at once: a lane's graphs run one after another on its stream, those of two lanes
        # do not, hence a pool per lane. A new one each time, as a pool dies with its last graph.
        self._pool = self._cuda.graph_pool_handle()

    def upload(self, ids: np.ndarray) -> Tensor:
        """From pinned memory, so that the host goes on meanwhile; torch keeps it until then."""
        return torch.from_numpy(ids).pin_memory().to(self.client.device, non_blocking=True)

    def step(self, step: Step, ids: Tensor) -> None:
        if self._eager:
            step(ids)
            return
        kind = (len(ids), self.client.variant)
        first = kind not in self._steps
        if first:
            self._steps[kind] = Recorded(torch.empty_like(ids))
        known = self._steps[kind]
        known.ids.copy_(ids, non_blocking=True)
        if first:
            step(known.ids)
            return
        if known.graph is None:
            known.graph, known.step = self._record(step, known.ids), step
        known.graph.replay()

    def _record(self, step: Step, ids: Tensor) -> torch.cuda.CUDAGraph:
        graph = self._cuda.CUDAGraph()
        # A replay then draws from where the generator is at that time: in a new participation the
        # beginning of the client's own stream, the numbers that the step would draw if it were run.
        graph.register_generator_state(self.client.generator)
        # thread_local: what other lanes do meanwhile on their threads (allocate, say) is allowed.
        recording = self._cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        )
        try:
            with _recording, recording:
                step(ids)
        except RuntimeError as error:
            raise RuntimeError(
                f"the step cannot be recorded as a CUDA graph: {error}. An algorithm or a module "
                "that asks the device for a value (.item(), a mask as index) says so by an "
                "attribute capturable = False; its steps then run one operator at a time"
            ) from error
        return graph

    # A lane's work lies between `follow` and `join`, so the caching allocator may give memory of
    # one stream to the other after them: it needs no record_stream.

    def follow(self) -> None:
        self._stream.wait_stream(self._cuda.current_stream(self.client.device))

    def working(self) -> AbstractContextManager[object]:
        return self._cuda.stream(self._stream)

    def join(self) -> None:
        self._cuda.current_stream(self.client.device).wait_stream(self._stream)
