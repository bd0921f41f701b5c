"""Every random draw of a run: (seed, stream, ids) → an independent generator.

Streams keep the stages apart: drawing more in one never shifts another, and any round or client
can be reproduced alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

PARTITION = 0  # no ids
CLASSES = 1  # no ids
SAMPLING = 2  # round
SHUFFLE = 3  # round, client
UPLOAD = 4  # client
INDEX_SHUFFLE = 5  # epoch, or round and client
INDEX_COHORT = 6  # round
LOCAL = 7  # round, client; or epoch, 0: what torch draws while a model trains
CONTROL = 8  # no ids: what a control draws instead of an index
SKETCH = 9  # no ids: how updates are sketched
PRIVACY = 10  # client, columns: noise that a client adds to what it sends
MODELS = 11  # model: where several of one kind begin
HELD_OUT = 12  # no ids: which clients never train


def rng(seed: int, stream: int, *ids: int) -> np.random.Generator:
    """Generator of one stream, e.g. `rng(seed, SHUFFLE, round, client)`."""
    return np.random.default_rng([seed, stream, *ids])


def torch_seed(seed: int, t: int, client: int) -> int:
    """Seed for torch before one client's local training in round `t` (dropout, augmentation).

    A hash: with sums of multiples, (1, 1009) and (2, 0) could be one seed. 63 bits, as torch takes
    no more into a signed integer.
    """
    (words,) = np.random.SeedSequence([seed, LOCAL, t, client]).generate_state(1, np.uint64)
    return int(words) >> 1


@contextmanager
def seeded_construction(seed: int) -> Iterator[None]:
    """Modules built inside get the weights of `torch.manual_seed(seed)`, on the CPU.

    Afterwards torch's global generators are as they were before.
    """
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # Not torch.manual_seed: that would reseed the generators of all devices as well.
        torch.default_generator.manual_seed(seed)
        yield
