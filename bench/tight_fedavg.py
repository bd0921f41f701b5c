"""TIGHT: sequential FedAvg without waste; the harder baseline of bench/rounds.py.

One client after another on all intra-op threads: batches are gathered from resident normalised
tensors (no DataLoader), one module is loaded in place for each client (no copies of modules), the
optimiser is torch's SGD in the faster of its foreach and fused forms, and the average is summed
up as clients finish. All of it is public torch, and an afternoon's work for anyone.
"""

import time
from collections.abc import Iterable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


def faster_form(model: nn.Module, sgd: dict[str, float]) -> dict[str, bool]:
    """{"foreach": True} or {"fused": True}, whichever steps this model faster here."""
    seconds = {}
    for form in ("foreach", "fused"):
        leaves = [nn.Parameter(p.detach().clone()) for p in model.parameters()]
        optimiser = torch.optim.SGD(leaves, **sgd, **{form: True})
        for leaf in leaves:
            leaf.grad = torch.zeros_like(leaf)
        taken = []
        for _ in range(7):
            start = time.perf_counter()
            optimiser.step()
            taken.append(time.perf_counter() - start)
        seconds[form] = sorted(taken)[3]
    return {min(seconds, key=seconds.__getitem__): True}


def rounds(
    model: nn.Module,
    x: Tensor,  # float32 [N, …], normalised
    y: Tensor,  # int64 [N]
    clients: tuple[np.ndarray, ...],  # sample ids of each client
    cohorts: Iterable[np.ndarray],  # client ids of each round
    *,
    epochs: int,
    batch_size: int,
    sgd: dict[str, float],
) -> Iterator[nn.Module]:
    """The global model after each round (the same module every time)."""
    model.train()
    ids = [torch.from_numpy(c) for c in clients]
    state = [t.detach() for t in model.state_dict().values() if t.is_floating_point()]
    start = [t.clone() for t in state]  # the global model
    total = [torch.zeros_like(t) for t in state]
    form = faster_form(model, sgd)
    for cohort in cohorts:
        torch._foreach_zero_(total)
        samples = sum(len(ids[c]) for c in cohort)
        for c in cohort:
            torch._foreach_copy_(state, start)
            optimiser = torch.optim.SGD(model.parameters(), **sgd, **form)
            for _ in range(epochs):
                for batch in ids[c][torch.randperm(len(ids[c]))].split(batch_size):
                    optimiser.zero_grad()
                    loss = F.cross_entropy(model(x.index_select(0, batch)), y[batch])
                    loss.backward()
                    optimiser.step()
            torch._foreach_add_(total, state, alpha=len(ids[c]) / samples)
        torch._foreach_copy_(start, total)
        torch._foreach_copy_(state, total)
        yield model
