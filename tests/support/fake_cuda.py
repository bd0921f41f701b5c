"""A GPU without memory: tensors on "cuda" have shape, type and device, those of the CPU are real.

`FakeGpu` is a mode that each thread enters. Inside, what is made on or sent to "cuda" is a fake
tensor; an operator that mixes the devices raises, as on a GPU. What comes back from the device is
ones, so that programs that look at values go on. `FakeCuda` stands in for torch.cuda in CudaLane:
while a graph is recorded, everything is refused that waits for the device or reads the host
(the lists are those of cuda_stand_in.py); a replay does nothing.

fake_cuda_library.load must have been called before torch was imported.
"""

import sys
import threading
from contextlib import ExitStack, contextmanager, nullcontext

import torch
from cuda_stand_in import (
    CudaStandIn,
    RefusedCalls,
    StandInGraph,
    draws_from_the_default_generator,
    waits_for_the_device,
)
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

DEVICE = torch.device("cuda")
aten = torch.ops.aten
_fake = FakeTensorMode(allow_non_fake_inputs=True)
_recording = threading.local()  # .graph: what this thread records, if it does


class FakeGpu(TorchDispatchMode):
    def __enter__(self):
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor: on the CPU first, then sent
        return super().__enter__()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        on_gpu = [isinstance(t, FakeTensor) for t in tensors]
        graph = getattr(_recording, "graph", None)
        if graph is not None:
            refuse_what_waits(graph, operator, args, kwargs, tensors)
        if operator is aten._local_scalar_dense.default and any(on_gpu):
            return torch.ones((), dtype=tensors[0].dtype).item()
        wanted = kwargs.get("device")
        to = tensors[0].device.type if wanted is None and tensors else str(wanted or "cpu")
        if operator is aten._to_copy.default and any(on_gpu) and to == "cpu":
            return torch.ones(tensors[0].shape, dtype=kwargs.get("dtype") or tensors[0].dtype)
        if operator is aten.copy_.default and on_gpu == [False, True]:
            return args[0].fill_(1)
        if any(on_gpu) or to.startswith("cuda"):
            with _fake:
                return operator(*args, **kwargs)
        return operator(*args, **kwargs)


def refuse_what_waits(graph, operator, args, kwargs, tensors):
    """As CUDA does while it records."""
    if waits_for_the_device(operator, args, kwargs):
        graph.refuse(operator)
    if draws_from_the_default_generator(operator, args, kwargs):
        graph.refuse(f"{operator} draws from torch's default generator")
    places = {t.device.type for t in tensors} | {torch.device(kwargs.get("device") or "cuda").type}
    if tensors and places == {"cpu", "cuda"}:
        graph.refuse(f"{operator} between host and device")
    known = {g._cdata for g in graph.generators}
    for leaf in tree_leaves((args, kwargs)):
        if isinstance(leaf, torch.Generator) and leaf._cdata not in known:
            graph.refuse("a generator that the graph does not know")


class FakeCuda(CudaStandIn):
    """Streams and graphs of one lane; its thread is in the mode while it works."""

    @contextmanager
    def stream(self, stream):
        with super().stream(stream), FakeGpu():
            yield

    def CUDAGraph(self):
        self.graphs.append(FakeGraph(self))
        return self.graphs[-1]


class FakeGraph(StandInGraph):
    def capture_begin(self, *, pool, capture_error_mode):
        self.recorded_on = self.cuda.current_stream(None)
        self._calls = RefusedCalls(self)
        self._calls.__enter__()
        _recording.graph = self

    def capture_end(self):
        _recording.graph = None
        self._calls.__exit__(None, None, None)
        if self.broken:
            raise RuntimeError("operation failed due to a previous error during capture")

    def replay(self):
        assert self.cuda.current_stream(None) is self.recorded_on
        self.replays += 1


_to_device = nn.Module.to


def _to(module, *args, **kwargs):
    """A module that is there already stays as it is; torch would try to exchange its tensors."""
    tensors = [*module.parameters(), *module.buffers()]
    there = tensors and all(isinstance(t, FakeTensor) for t in tensors)
    return module if there else _to_device(module, *args, **kwargs)


class OneThread(ExitStack):
    """In place of threads that have not entered the mode."""

    def __init__(self, *args, **kwargs):
        super().__init__()

    map = staticmethod(map)


def install() -> FakeCuda:
    """The package's lanes use the fake device; what asks the driver for facts is answered."""
    from c2v_sim.index import build
    from c2v_sim.training import cuda_lane

    # Module.to makes new parameters: those of the CPU cannot become fake in place.
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    nn.Module.to = _to
    Tensor.pin_memory = lambda self: self
    torch.cuda._lazy_init = lambda: None
    # Inside of torch's own, Tensor.to would reach the mode whole, not as its parts.
    torch.inference_mode = lambda on=True: torch.no_grad() if on else nullcontext()
    cuda = FakeCuda()
    cuda_lane.CudaLane.__init__.__defaults__ = (cuda, 1)  # recorded after one step of a kind
    build.ThreadPoolExecutor = OneThread
    facts = {"choose_device": lambda name: DEVICE, "free_memory": lambda device: 24 << 30}
    for module in [m for name, m in sys.modules.items() if name.startswith("c2v_sim.")]:
        vars(module).update({name: fact for name, fact in facts.items() if name in vars(module)})
    return cuda
