"""The stand-in for torch.cuda refuses while it records what a GPU refuses."""

from contextlib import suppress

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cuda_stand_in import CudaStandIn

x, ids = torch.arange(8.0), torch.arange(8)
mask, own = x > 3, torch.Generator()

REFUSED = {
    "a value": lambda: x.sum().item(),
    "a truth": lambda: bool(mask.any()),
    "a list": lambda: x.tolist(),
    "an array": lambda: x.numpy(),
    "np.asarray": lambda: np.asarray(x),
    "to the host": lambda: x.cpu(),
    "from a list": lambda: torch.tensor([1.0]),
    "from an array": lambda: torch.from_numpy(np.ones(3)) + 1,
    "a mask as index": lambda: x[mask],
    "values where a mask is": lambda: x.clone().index_put_((mask,), torch.zeros(4)),
    "nonzero": lambda: mask.nonzero(),
    "masked_select": lambda: x.masked_select(mask),
    "unique": lambda: torch.unique(ids),
    "unique_consecutive": lambda: torch.unique_consecutive(ids),
    "bincount": lambda: torch.bincount(ids),
    "repeat_interleave": lambda: torch.repeat_interleave(x, ids),
    "the default generator": lambda: torch.rand(3),
    "dropout": lambda: F.dropout(x, 0.5),
}
ALLOWED = {
    "ids as index": lambda: x[ids],
    "a number where a mask is": lambda: x.clone().masked_fill_(mask, 0.0),
    "where": lambda: torch.where(mask, x, 0.0),
    "repeat_interleave of known size": lambda: torch.repeat_interleave(x, ids, output_size=28),
    "the own generator": lambda: torch.rand(3, generator=own),
}


def record(step):
    cuda = CudaStandIn()
    graph = cuda.CUDAGraph()
    graph.register_generator_state(own)
    graph.capture_begin(pool=None, capture_error_mode="thread_local")
    try:
        step()
    finally:
        with suppress(RuntimeError):  # says only that there was an error before
            graph.capture_end()
    return graph


@pytest.mark.parametrize("step", REFUSED.values(), ids=REFUSED)
def test_refused(step):
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        record(step)


@pytest.mark.parametrize("step", ALLOWED.values(), ids=ALLOWED)
def test_allowed(step):
    assert record(step).calls


def test_a_generator_that_the_graph_does_not_know_is_refused():
    with pytest.raises(RuntimeError, match="does not know"):
        record(lambda: torch.rand(3, generator=torch.Generator()))
