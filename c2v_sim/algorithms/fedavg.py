"""FedAvg, and the hooks by which every other algorithm differs from it.

    local loss CE(f(x), y);  w = sum_i p_i w_i

In a round the loop calls, in this order:

    before_round   once, with the cohort's ids
    begin          for each client, when its turn on a lane has come
    step_terms     for each client: what the fused optimiser step adds to the gradient
    loss           for each batch
    after_batch    for each batch, after the step or steps on it
    end            for each client, when it has trained
    finish         for each client in ascending order, after the whole cohort has trained
    update         once: the trained rows become the global row

Only `finish` and `update` change what lasts from round to round, so a round that is interrupted
while clients train leaves no trace. From `begin` to `end` hooks run on the lanes' threads, at the
same time for several clients: they may write to `client`, not to `self`. Tensors that last are
asked of the run in `start` (run.server_state, run.client_rows) and changed in place; the run saves
them.

On a GPU a step is recorded once and replayed for all clients, so what `loss` needs of the client
at hand is written by `begin` to `client.memory`; a number or an id of Python's would be that of the
client whose step was recorded. `client.variant` tells apart steps that differ in kind.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from c2v_sim.algorithms.run_parts import RunParts
from c2v_sim.training.aggregation import average
from c2v_sim.training.arena import Arena
from c2v_sim.training.client_rows import ClientRows
from c2v_sim.training.local_client import LocalClient
from c2v_sim.training.optimisers import StepTerms

GLOBAL, CLUSTER, PERSONAL = TESTED = ("global", "cluster", "personal")  # kinds of models
Hook = TypeVar("Hook", bound=Callable)
LOCAL_HOOKS = ("begin", "step_terms", "local_loss", "loss", "after_batch", "end")


def part_of_plain_sgd(hook: Hook) -> Hook:
    """Declares that the hook adds nothing to SGD on cross entropy; an override is not declared."""
    hook.part_of_plain_sgd = True  # type: ignore[attr-defined]
    return hook


def takes_padding(hook: Hook) -> Hook:
    """Declares that samples whose label is PADDING are no part of the loss; an override is not
    declared, and then a GPU trains on batches of as many lengths as there are."""
    hook.takes_padding = True  # type: ignore[attr-defined]
    return hook


def check_trains_by_loss(algorithm: "Algorithm", what: str) -> None:
    """Refuse an algorithm whose `local_loss` would be left out; `what` calls `loss` instead."""
    if not hasattr(algorithm.local_loss, "part_of_plain_sgd"):
        raise ValueError(
            f"{what} an algorithm's `loss`, and {algorithm.name} has a `local_loss` of its own, "
            "which would be left out; override `loss` instead"
        )


def only_averages(hook: Hook) -> Hook:
    """Declares that the hook leaves the cohort's rows alone or to `average`, so that ranks need not
    exchange whole rows; an override is not declared."""
    hook.only_averages = True  # type: ignore[attr-defined]
    return hook


def averages_as_given(hook: Hook) -> Hook:
    """Declares that `update` averages once, with the weights that it is given, so that rows can be
    summed while the others still train; an override is not declared."""
    hook.averages_as_given = True  # type: ignore[attr-defined]
    return only_averages(hook)


class Algorithm:
    """FedAvg. Another algorithm overrides the hooks in which it differs."""

    name = "fedavg"
    capturable = True  # False: a GPU cannot record and replay a step (training/cuda_lane.py)
    steps_per_batch = 1

    @property
    def personal(self) -> ClientRows | None:
        """The rows of what clients keep of the model for themselves, where they do."""
        return None

    @property
    def tested(self) -> str:
        """Of what kind the model is by which a client is tested: one of TESTED."""
        return GLOBAL if self.personal is None else PERSONAL

    @property
    def shares_model(self) -> bool:
        """Whether the global model is trained, so that it is of use to clients."""
        return True

    @property
    def second(self) -> "tuple[Algorithm, Arena] | None":
        """How clients train a second time in a round, from the global model too, and where what
        they end with is put; `update` makes use of it."""
        return None

    @property
    def tuned_epochs(self) -> int:
        """Local epochs of a client before it is tested."""
        return 0

    @property
    def plain_sgd(self) -> bool:
        """Whether clients train by SGD on cross entropy alone, so that they may be stacked."""
        plain = all(hasattr(getattr(self, hook), "part_of_plain_sgd") for hook in LOCAL_HOOKS)
        return plain and self.steps_per_batch == 1

    @property
    def leaves_out_padding(self) -> bool:
        """Whether batches may be padded (training/local_training.py: PADDING)."""
        return all(hasattr(h, "takes_padding") for h in (self.local_loss, self.loss))

    @property
    def needs_rows(self) -> bool:
        """Whether somebody looks at what each client ended with, beyond the average."""
        return not all(hasattr(hook, "only_averages") for hook in (self.finish, self.update))

    @property
    def sums_at_once(self) -> bool:
        """Whether a client's row is of no use any more when it has been added to the average."""
        looks = getattr(self.finish, "__func__", None) is not Algorithm.finish
        return hasattr(self.update, "averages_as_given") and not looks

    def adapt_model(self, model: nn.Module, width: int, classes: int) -> nn.Module:
        """The model that is trained; `width` is that of z = model.features(x)."""
        return model

    def start(self, run: RunParts) -> None:
        """Once before the first round: take from the run what the algorithm needs."""

    def before_round(self, run: RunParts, t: int, clients: np.ndarray) -> None:
        """Once in round `t` before local training; may only prepare what this round needs."""

    @part_of_plain_sgd
    def begin(self, client: LocalClient) -> None:
        """The client is about to train; `client.memory` is the place for what `loss` needs."""

    @part_of_plain_sgd
    def step_terms(self, client: LocalClient) -> StepTerms:
        """Terms of ops.sgd_step_: linear, proximal and anchor, max_grad_norm; extra_decay."""
        return {}

    @takes_padding
    @part_of_plain_sgd
    def local_loss(self, client: LocalClient, x: Tensor, y: Tensor) -> Tensor:
        """The loss of a batch before a run adds to it; most algorithms override only `loss`."""
        z, logits = forward(client.module, x)
        return self.loss(client, x, y, z, logits)

    @takes_padding
    @part_of_plain_sgd
    def loss(self, client: LocalClient, x: Tensor, y: Tensor, z: Tensor, logits: Tensor) -> Tensor:
        """The algorithm's loss of a batch, z = features(x) [B, d], logits [B, K]."""
        return F.cross_entropy(logits, y)

    @part_of_plain_sgd
    def after_batch(self, client: LocalClient) -> None:
        """The client has taken its `steps_per_batch` on a batch; on a GPU a part of what is
        recorded."""

    @part_of_plain_sgd
    def end(self, client: LocalClient) -> None:
        """The client has trained: `client.row` is what the server gets, and may be changed."""

    def before_test(self, clients: Sequence[int]) -> None:
        """Once in an evaluation of `clients`, where `tested` is not the global model."""

    def has_own(self, client: int) -> bool:
        """Whether the model of `client` is another than the global one."""
        return self.personal is not None and client in self.personal

    def personalise(self, client: int, row: Tensor) -> None:
        """Write what `client` keeps for itself over the global `row` [size]; for evaluation, on a
        lane's thread."""

    def prior(self, sizes: Tensor) -> Tensor:  # [k] -> [k]
        """What the weights of the cohort are proportional to before any index: N_i."""
        return sizes

    @only_averages
    def finish(self, client: int, row: Tensor, origin: Tensor) -> None:
        """`client` ended at `row` [size], having begun at `origin` [size]: keep what lasts."""

    @averages_as_given
    def update(self, server: Arena, cohort: Arena, weights: Tensor) -> None:
        """Replace server row 0 by the new global model; weights p [k] sum to 1."""
        average(server, cohort, weights)


def forward(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """z = features(x) [B, d] and logits = classifier(z) [B, K]."""
    z = module.features(x)  # type: ignore[operator]
    return z, module.classifier(z)  # type: ignore[operator]
