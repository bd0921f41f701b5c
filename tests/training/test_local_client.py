"""The memory of a lane: one owner's is never another's, and its shape is checked."""

import pytest
import torch
from torch import nn

from c2v_sim.training.arena import layout_of
from c2v_sim.training.local_client import LocalClient
from c2v_sim.training.optimisers import Sgd


@pytest.fixture
def client():
    module = nn.Linear(3, 2)
    return LocalClient(module, layout_of(module), torch.device("cpu"))


def test_memory_keeps_its_address_and_what_was_left_there(client):
    first = client.memory("row", 4)
    assert not first.any()
    first.fill_(7)
    assert client.memory("row", 4).data_ptr() == client.memory("row").data_ptr() == first.data_ptr()
    assert client.memory("row").tolist() == [7] * 4


def test_an_algorithm_may_choose_the_names_of_the_optimiser(client):
    own = client.memory("velocity", 2).fill_(3)
    step = Sgd(0.1, momentum=0.9).start(client)  # its velocity has 32 numbers and starts at 0
    client.gradients.fill_(1)
    step()
    assert own.tolist() == [3, 3]
    theirs = client.owned_memory("optimiser", "velocity", (32,))
    torch.testing.assert_close(theirs, torch.ones(32))


def test_another_shape_is_refused(client):
    client.memory("row", 4)
    message = r"memory 'row' of the algorithm has shape \[4\] since its first call, now \[2, 2\]"
    with pytest.raises(ValueError, match=message):
        client.memory("row", 2, 2)


def test_a_name_that_was_never_given_a_shape_is_refused(client):
    client.memory("row", 4)
    with pytest.raises(ValueError, match=r"client.memory\('rwo'\): give its shape"):
        client.memory("rwo")
