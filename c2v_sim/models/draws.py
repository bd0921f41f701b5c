"""Random numbers that a module draws by itself in training, from the generator of its client.

nn.Dropout is replaced by one with a generator (models/dropout.py). Whatever else draws, such as
F.dropout, attention with dropout, stochastic depth or torch.rand, would draw from torch's default
generator, which all lanes share, and the result would depend on their timing. Such a module is
noticed by one batch, and its steps run inside of OwnDraws, which hands every draw the client's
generator. That costs some microseconds for each operator of the forward pass.
"""

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from c2v_sim.models.common import logits
from c2v_sim.models.dropout import use_own_generators

MARK = "draws_by_itself"  # an attribute of a module whose steps need OwnDraws


class OwnDraws(TorchDispatchMode):
    """Inside, every operator that draws takes `generator`; on this thread alone."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded in func.tags and not drops_nothing(func, args, kwargs):
            func = with_generator(func)
            if kwargs.get("generator") is None:
                kwargs = {**kwargs, "generator": self.generator}
        return func(*args, **kwargs)


def with_generator(func: Any) -> Any:
    """The form of an operator that takes a generator."""
    if takes_generator(func):
        return func
    own = func._overloadname
    name = "generator" if own == "default" else f"{own}_generator"
    other = getattr(func.overloadpacket, name, None)
    if other is None or not takes_generator(other):
        raise RuntimeError(
            f"the model draws random numbers by {func}, which takes no generator, so that the "
            "result would depend on the lanes' timing; use nn.Dropout, or drop nothing"
        )
    return other


def drops_nothing(func: Any, args: tuple, kwargs: dict) -> bool:
    """Whether it is attention without dropout, which draws nothing and takes no generator."""
    for position, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            given = args[position] if position < len(args) else argument.default_value
            return not kwargs.get("dropout_p", given)
    return False


def takes_generator(func: Any) -> bool:
    return any(argument.name == "generator" for argument in func._schema.arguments)


def mark_draws(module: nn.Module, x: Tensor) -> None:
    """Mark `module` where it draws by itself in training, seen on the batch x [B, …]."""
    trial = copy.deepcopy(module).train()
    for random in use_own_generators(trial):
        random.generator = torch.Generator()  # type: ignore[assignment]
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):  # as in training
        before = torch.get_rng_state()
        logits(trial, x)
        if not torch.equal(before, torch.get_rng_state()):
            setattr(module, MARK, True)
            with OwnDraws(torch.Generator()):
                logits(trial, x)  # what cannot be led to a generator is refused now


def draws_by_itself(module: nn.Module) -> bool:
    """Whether `module`, or a part of it, is marked."""
    return any(getattr(part, MARK, False) for part in module.modules())
