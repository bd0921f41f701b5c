"""A lane on a GPU: a stream of its own, and the whole local step as a CUDA graph.

A step (gather → normalise → forward → backward → optimiser) is hundreds of small launches; as a
graph it is one. For each kind of step, that is (batch length, client.variant):

    the first RUNS_FIRST run as they are, on the lane's stream: real steps, and the warm-up
    the next is recorded, which runs nothing, and replayed
    every later one is replayed

Recording takes about as long as RUNS_FIRST steps, so a kind that comes rarely never costs more than
twice the better choice. A lane keeps at most MOST_GRAPHS; the one that was not used for longest
goes. Clients' last batches have many lengths: they are padded to few (local_training.padded_length)
where that changes no more than the order of sums. An algorithm or a module with capturable = False
is never recorded: its steps run one operator at a time. `prepare` is told the version of what the
steps are made of; recorded steps of another version are of no use.

A process can record one graph at a time, and whatever waits for the device meanwhile breaks the
recording, on whichever thread. So do cuDNN's search for the quickest algorithm, libraries that set
themselves up and kernels that are compiled, all of which happen when a kind of step is run for the
first time: first steps and recordings exclude one another.

A graph knows addresses, not objects. It is right for every client because all that a step reads
or writes keeps its address for the life of the lane (LocalClient, client.memory) or of the run
(data, the global row). Evaluation binds the lane's module to the global row meanwhile; the next
client's participation binds it to the lane's own row again, which has not moved.

Nothing here waits for the GPU. torch.cuda.graph would, and would give all cached memory back at
each recording; hence capture_begin and capture_end.
"""

import threading
from collections import Counter
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from c2v_sim.training.arena import Layout
from c2v_sim.training.lane import Lane, Step

Kind = tuple[int, object]  # batch length, client.variant
RUNS_FIRST = 4  # steps of a kind before it is recorded
MOST_GRAPHS = 16  # of a lane; they share the memory of their activations

_alone = threading.Lock()  # held by whoever records, or runs a kind of step for the first time


@dataclass
class Recorded:
    """One kind of step."""

    graph: torch.cuda.CUDAGraph
    ids: Tensor  # where the graph finds the samples of the batch
    step: Step  # what was recorded: keeps the memory alive that the graph points to


class CudaLane(Lane):
    """`cuda` is torch.cuda, or what stands in for it where there is no GPU."""

    pads = True

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        device: torch.device,
        cuda: Any = torch.cuda,
        runs_first: int = RUNS_FIRST,
    ) -> None:
        super().__init__(module, layout, device)
        self._cuda = cuda
        self._stream = cuda.Stream(device)
        self._capturable = all(getattr(part, "capturable", True) for part in module.modules())
        self._version = 0  # of what the recorded steps are made of
        self._eager = False
        self._runs_first = runs_first
        self._forget()

    def _forget(self) -> None:
        self._runs: Counter[Kind] = Counter()  # steps of each kind that ran as they are
        self._graphs: dict[Kind, Recorded] = {}  # the last is the one that was used last

    @property
    def recorded(self) -> int:
        return len(self._graphs)

    def prepare(self, version: int, *, capturable: bool) -> None:
        """Graphs of another version are forgotten."""
        self._eager = not (self._capturable and capturable)
        if version == self._version:
            return
        self._version = version
        with _alone:  # a graph that goes is destroyed
            self._forget()
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
        if kind not in self._graphs and self._runs[kind] < self._runs_first:
            with nullcontext() if self._runs[kind] else _alone:
                step(ids)
            self._runs[kind] += 1
            return
        known = self._graphs.pop(kind, None) or self._record(step, ids)
        self._graphs[kind] = known
        known.ids.copy_(ids, non_blocking=True)
        known.graph.replay()

    def _record(self, step: Step, ids: Tensor) -> Recorded:
        graph, ids = self._cuda.CUDAGraph(), ids.clone()
        # A replay then draws from where the generator is at that time: in a new participation the
        # beginning of the client's own stream, the numbers that the step would draw if it were run.
        for generator in self.client.generators:
            graph.register_generator_state(generator)
        with _alone:
            if len(self._graphs) == MOST_GRAPHS:
                oldest = next(iter(self._graphs))
                del self._graphs[oldest], self._runs[oldest]  # it has to pay anew
            # thread_local: what other lanes do meanwhile (allocate, say) is allowed.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                step(ids)
            except Exception as error:
                with suppress(RuntimeError):  # which says only that the recording has failed
                    graph.capture_end()
                raise RuntimeError(
                    f"the step cannot be recorded as a CUDA graph: {error}. An algorithm or a "
                    "module that asks the device for a value (.item(), a mask as index) says so "
                    "by an attribute capturable = False; its steps then run one operator at a time"
                ) from error
            graph.capture_end()
        return Recorded(graph, ids, step)

    # A lane's work lies between `follow` and `join`, so the caching allocator may give memory of
    # one stream to the other after them: it needs no record_stream.

    def follow(self) -> None:
        self._stream.wait_stream(self._cuda.current_stream(self.client.device))

    def working(self) -> AbstractContextManager[object]:
        return self._cuda.stream(self._stream)

    def join(self) -> None:
        self._cuda.current_stream(self.client.device).wait_stream(self._stream)
