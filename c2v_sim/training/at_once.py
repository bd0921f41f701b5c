"""Steps of plain SGD that are taken while the backward pass still runs, one for each parameter.

A gradient is dropped as soon as its parameter has been changed, so that a lane needs no row of
gradients, 45 MB for resnet18, and memory is passed over less often. A number's step depends on
nothing but its own gradient, so the bits are those of one step over the row. Small models, for
which the calls would cost more, keep the row.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from c2v_sim import ops
from c2v_sim.training.arena import BoundModule, Layout, Slot, copy_of
from c2v_sim.training.local_client import LocalClient
from c2v_sim.training.local_training import CohortTraining
from c2v_sim.training.optimisers import Sgd, Step

FEWEST = 4 << 20  # numbers of a model


def steps_at_once(
    model: nn.Module, layout: Layout, device: torch.device, forward: Callable[[nn.Module], Tensor]
) -> bool:
    """Whether lanes should train `model` so; `forward` gives logits of some samples.

    By shapes, and for a user's own network by a trial of a backward pass: it must not read a
    parameter any more when the gradient of that is complete.
    """
    if device.type != "cpu" or layout.size < FEWEST:
        return False
    trial = BoundModule(copy_of(model, layout).eval(), layout, device)
    try:
        with trial.gradients_to(lambda slot, gradient: None):
            forward(trial.module).sum().backward()
    except RuntimeError:
        return False
    return True


@contextmanager
def steps_of(training: CohortTraining, client: LocalClient) -> Iterator[Step]:
    """Inside, what is to be called after each backward pass of `client`."""
    optimiser, objective = training.local.optimiser, training.objective
    terms = objective.step_terms(client)
    if training.at_once and objective.plain_sgd and isinstance(optimiser, Sgd):
        with _at_once(optimiser, client) as finish:
            yield finish
        return
    client.gradients  # noqa: B018 # they are there before a step may be recorded
    yield optimiser.start(client, **terms)


@contextmanager
def _at_once(sgd: Sgd, client: LocalClient) -> Iterator[Step]:
    velocity = sgd.velocity(client)
    layout = client.model.layout
    left = dict.fromkeys(layout.parameters)

    def take(slot: Slot, gradient: Tensor) -> None:
        part = slice(slot.offset, slot.end)
        buffer = None if velocity is None else velocity[part]
        flat = slot.flat(gradient.to_dense() if gradient.is_sparse else gradient)
        ops.sgd_step_(
            client.parameters[part],
            flat,
            buffer,
            lr=sgd.lr,
            momentum=sgd.momentum,
            weight_decay=sgd.weight_decay,
        )
        left.pop(slot, None)

    def finish() -> None:
        for slot in list(left) if sgd.momentum or sgd.weight_decay else ():
            take(slot, torch.zeros(slot.shape))  # of what this batch had no use for
        left.update(dict.fromkeys(layout.parameters))

    with client.model.gradients_to(take):
        yield finish
