"""Stands in for torch.cuda where there is no GPU: streams are written down, graphs are real.

A graph is recorded as CUDA records it: the operators that are dispatched, with the addresses and
the numbers of that moment, and nothing of it takes effect. A replay dispatches the same operators
on the same addresses. Whatever a step took from Python (a client's id, a tensor that is made anew
for each client) is therefore that of the recorded step for ever, as on a GPU.
"""

import itertools
import threading
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from c2v_sim.models.draws import drops_nothing

# Operators that CUDA refuses while it records: they wait for the device, or copy from the host.
REFUSED = {
    "aten::_local_scalar_dense",
    "aten::lift_fresh",
    "aten::nonzero",
    "aten::masked_select",
    "aten::equal",
    "aten::_unique",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_consecutive",
    "aten::unique_dim_consecutive",
    "aten::bincount",
}
# The same of what a tensor of the CPU does without an operator.
REFUSED_CALLS = {
    Tensor.tolist,
    Tensor.cpu,
    Tensor.numpy,
    Tensor.__array__,
    torch.from_numpy,
    torch.as_tensor,
}
MASKS = (torch.bool, torch.uint8)


class CudaStandIn:
    """`log` is what happened, in order: waits, recordings and replays by the name of the stream."""

    def __init__(self):
        self.log = []
        self.graphs = []
        self.current = threading.local()
        self.main = StandInStream(self, "main")
        self._lanes, self._pools = itertools.count(), itertools.count()
        self.recording = threading.Lock()

    def Stream(self, device):
        return StandInStream(self, f"lane {next(self._lanes)}")

    def current_stream(self, device):
        return getattr(self.current, "stream", self.main)

    @contextmanager
    def stream(self, stream):
        before, self.current.stream = self.current_stream(None), stream
        try:
            yield
        finally:
            self.current.stream = before

    def graph_pool_handle(self):
        return f"pool {next(self._pools)}"

    def CUDAGraph(self):
        self.graphs.append(StandInGraph(self))
        return self.graphs[-1]


class StandInStream:
    def __init__(self, cuda, name):
        self.cuda, self.name = cuda, name

    def wait_stream(self, other):
        self.cuda.log.append(("wait", self.name, other.name))


class StandInGraph:
    def __init__(self, cuda):
        self.cuda, self.generators, self.calls, self.replays = cuda, [], [], 0
        self.broken = False

    def register_generator_state(self, generator):
        self.generators.append(generator)

    def capture_begin(self, *, pool, capture_error_mode):
        assert capture_error_mode == "thread_local"
        assert self.cuda.recording.acquire(blocking=False), "two lanes record at the same time"
        self.pool, self.recorded_on = pool, self.cuda.current_stream(None)
        self.cuda.log.append(("record", self.recorded_on.name))
        self._states = [g.get_state() for g in self.generators]
        self._recorder, self._calls = Recorder(self), RefusedCalls(self)
        self._recorder.__enter__()
        self._calls.__enter__()

    def capture_end(self):
        self._calls.__exit__(None, None, None)
        self._recorder.__exit__(None, None, None)
        self._recorder.undo()
        for generator, state in zip(self.generators, self._states, strict=True):
            generator.set_state(state)
        self.cuda.recording.release()
        if self.broken:
            raise RuntimeError("operation failed due to a previous error during capture")

    def refuse(self, what):
        self.broken = True
        raise RuntimeError(f"operation not permitted when stream is capturing: {what}")

    def replay(self):
        stream = self.cuda.current_stream(None)
        assert stream is self.recorded_on, "a graph of one lane was replayed by another"
        self.cuda.log.append(("replay", stream.name))
        self.replays += 1
        with torch.no_grad():
            for operator, args, kwargs, outs in self.calls:
                fresh = tree_leaves(operator(*args, **kwargs))
                for old, new in zip(outs, fresh, strict=True):
                    if isinstance(old, Tensor) and address(old) != address(new):
                        old.copy_(new)


class RefusedCalls(TorchFunctionMode):
    def __init__(self, graph):
        super().__init__()
        self.graph = graph

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in REFUSED_CALLS:
            self.graph.refuse(function.__name__)
        return function(*args, **(kwargs or {}))


class Recorder(TorchDispatchMode):
    """Writes into graph.calls what is dispatched, and takes back what it did to memory.

    It would take back, too, what another lane wrote meanwhile to the same tensor.
    """

    def __init__(self, graph):
        super().__init__()
        self.graph = graph
        self.made = set()  # addresses of tensors that the step makes: the graph's own pool
        self.before = {}  # address of every other tensor -> (its bytes, a copy from before)

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if waits_for_the_device(operator, args, kwargs):
            self.graph.refuse(operator)
        if draws_from_the_default_generator(operator, args, kwargs):
            self.graph.refuse(f"{operator} draws from torch's default generator")
        known = {g._cdata for g in self.graph.generators}
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Generator) and leaf._cdata not in known:
                self.graph.refuse("a generator that the graph does not know")
            if isinstance(leaf, Tensor) and address(leaf) not in self.made | self.before.keys():
                memory = torch.empty(0, dtype=torch.uint8).set_(leaf.untyped_storage())
                self.before[address(leaf)] = memory, memory.clone()
        # Another object at the same address: binding a module elsewhere must not move it.
        fixed_args, fixed_kwargs = tree_map_only(Tensor, Tensor.detach, (args, kwargs))
        out = operator(*args, **kwargs)
        outs = tree_leaves(tree_map_only(Tensor, Tensor.detach, out))
        self.made |= {address(t) for t in outs if isinstance(t, Tensor)} - self.before.keys()
        self.graph.calls.append((operator, fixed_args, fixed_kwargs, outs))
        return out

    def undo(self):
        for memory, copy in self.before.values():
            memory.copy_(copy)


def waits_for_the_device(operator, args, kwargs):
    """Whether the operator has to know values before it knows its shapes, or hands them out."""
    name = operator.overloadpacket._qualified_op_name
    if name == "aten::repeat_interleave":
        return kwargs.get("output_size") is None
    if name in ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"):
        masks = [i for i in args[1] if i is not None and i.dtype in MASKS]
        fills = len(args) > 2 and args[2].numel() == 1 and not any(args[3:])  # masked_fill
        return bool(masks) and not fills
    return name in REFUSED


def draws_from_the_default_generator(operator, args, kwargs):
    if torch.Tag.nondeterministic_seeded not in operator.tags:
        return False
    given = any(isinstance(leaf, torch.Generator) for leaf in tree_leaves((args, kwargs)))
    return not given and not drops_nothing(operator, args, kwargs)


def address(tensor):
    return tensor.untyped_storage().data_ptr()
