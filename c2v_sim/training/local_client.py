"""Stage 7b: one client while it trains: its row, its gradients and memory of its own.

A lane keeps one LocalClient and lets client after client sit in it. All tensors keep their
addresses for the life of the lane, so that a step recorded for one client (a CUDA graph) is valid
for the next. This object is what the hooks of an algorithm are given.
"""

import copy

import torch
from torch import Tensor, nn

from c2v_sim.models.dropout import use_own_generators
from c2v_sim.training.arena import Arena, BoundModule, Layout


class LocalClient:
    """Model, gradients and random numbers of the client that trains now."""

    def __init__(self, module: nn.Module, layout: Layout, device: torch.device) -> None:
        self.id, self.round, self.samples = -1, 0, 0  # who trains, set by `sit`
        self.variant: object = None  # an algorithm sets it where a client's step differs in kind
        self.device = device
        self.generator = torch.Generator(device)
        for random in use_own_generators(module):
            random.generator = self.generator  # type: ignore[assignment]
        self.model = BoundModule(module, layout, device)
        self.gradients = self.model.gradients  # [trainable], zero between steps
        self.row = Arena(layout, 1, device)
        self.parameters = self.row.data[0, : layout.trainable]
        self.server = self.row  # the arena of the global model, set by `sit`
        self._memory: dict[str, Tensor] = {}
        self._twins: dict[str, BoundModule] = {}

    @property
    def module(self) -> nn.Module:
        return self.model.module

    @property
    def origin(self) -> Tensor:
        """The global model's parameters, where the client began, [trainable]."""
        return self.server.data[0, : len(self.parameters)]

    def sit(self, id: int, round: int, samples: int, server: Arena, seed: int) -> None:
        """Begin a participation: the global model, zero gradients, a new random stream."""
        self.id, self.round, self.samples, self.variant = id, round, samples, None
        self.server = server
        self.row.data.copy_(server.data[:1])
        self.row.integers.copy_(server.integers[:1])
        self.model.bind(self.row.data[0], self.row.integers[0])
        self.module.train()
        self.gradients.zero_()
        self.generator.manual_seed(seed)

    def memory(self, name: str, *shape: int) -> Tensor:
        """Float32 memory of the lane's own, kept for good; the first call gives the shape.

        It starts as zeros and then holds what the previous client left there.
        """
        if name not in self._memory:
            self._memory[name] = torch.zeros(shape, device=self.device)
        return self._memory[name]

    def twin(self, name: str) -> BoundModule:
        """A second copy of the module in eval mode, to be bound to another row and only read."""
        if name not in self._twins:
            module = copy.deepcopy(self.module).eval().requires_grad_(False)
            self._twins[name] = BoundModule(module, self.model.layout, self.device, trains=False)
        return self._twins[name]
