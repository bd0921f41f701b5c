"""Stage 7b: one client while it trains: its row, its gradients and memory of its own.

A lane keeps one LocalClient, in which client after client takes part. All tensors keep their
addresses for the life of the lane, so that a step recorded for one client (a CUDA graph) is valid
for the next. This object is what the hooks of an algorithm are given.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from c2v_sim.models.draws import OwnDraws, draws_by_itself
from c2v_sim.models.dropout import use_own_generators
from c2v_sim.training.arena import Arena, BoundModule, Layout, copy_of

ALGORITHM = "algorithm"  # the owner of what `memory` gives


class LocalClient:
    """Model, gradients and random numbers of the client that trains now."""

    def __init__(self, module: nn.Module, layout: Layout, device: torch.device) -> None:
        self.id, self.round, self.samples = -1, 0, 0  # who trains: see begin_participation
        self.variant: object = None  # an algorithm sets it where a client's step differs in kind
        self.padded = False  # whether batches may end with samples that do not count: see PADDING
        self.device = device
        self.generator = torch.Generator(device)
        self.generators = [self.generator]  # more where clients are stacked: see generators_of
        for random in use_own_generators(module):
            random.generator = self.generator  # type: ignore[assignment]
        self._draws = draws_by_itself(module)
        self.model = BoundModule(module, layout, device)
        self.row = Arena(layout, 1, device)
        self.parameters = self.model.bind(self.row.data[0], self.row.integers[0])
        self.server = self.row  # the arena of the global model: see begin_participation
        self._memory: dict[tuple[str, str], Tensor] = {}  # by owner and name
        self._twins: dict[str, BoundModule] = {}

    @property
    def module(self) -> nn.Module:
        return self.model.module

    @property
    def gradients(self) -> Tensor:  # [trainable]
        """Zero between steps."""
        return self.model.gradients

    @property
    def origin(self) -> Tensor:
        """The global model's parameters, where the client began, [trainable]."""
        return self.server.data[0, : len(self.parameters)]

    def begin_participation(self, id: int, t: int, samples: int, server: Arena, seed: int) -> None:
        """Client `id` in round `t`: the global model, zero gradients, a new random stream."""
        self.id, self.round, self.samples, self.variant = id, t, samples, None
        self.server = server
        self.row.data.copy_(server.data[:1])
        self.row.integers.copy_(server.integers[:1])
        self.model.bind(self.row.data[0], self.row.integers[0])
        self.module.train()
        self.model.clear_gradients()
        self.generator.manual_seed(seed)

    def generators_of(self, seeds: Sequence[int]) -> list[torch.Generator]:
        """One for each of several clients that train together, at the beginning of its stream."""
        while len(self.generators) < len(seeds):
            self.generators.append(torch.Generator(self.device))
        for generator, seed in zip(self.generators, seeds, strict=False):
            generator.manual_seed(seed)
        return self.generators[: len(seeds)]

    def drawing(self) -> AbstractContextManager[object]:
        """Inside, what the module draws in training is the client's own."""
        return OwnDraws(self.generator) if self._draws else nullcontext()

    def memory(self, name: str, *shape: int) -> Tensor:
        """Float32 memory for an algorithm, the lane's own and kept for good.

        The first call gives the shape, later ones may leave it out. It starts as zeros and then
        holds what the previous client left there.
        """
        if not shape:
            if (ALGORITHM, name) not in self._memory:
                raise ValueError(f"client.memory({name!r}): give its shape in the first call")
            return self._memory[ALGORITHM, name]
        return self.owned_memory(ALGORITHM, name, shape)

    def owned_memory(self, owner: str, name: str, shape: tuple[int, ...]) -> Tensor:
        """`memory` for any owner: what belongs to one is never given to another."""
        key = owner, name
        if key not in self._memory:
            self._memory[key] = torch.zeros(shape, device=self.device)
        if self._memory[key].shape != shape:
            raise ValueError(
                f"memory {name!r} of the {owner} has shape {list(self._memory[key].shape)} since "
                f"its first call, now {list(shape)} is asked for"
            )
        return self._memory[key]

    def twin(self, name: str) -> BoundModule:
        """A second copy of the module in eval mode, to be bound to another row and only read."""
        if name not in self._twins:
            layout = self.model.layout
            module = copy_of(self.module, layout).eval().requires_grad_(False)
            self._twins[name] = BoundModule(module, layout, self.device, trains=False)
        return self._twins[name]
