"""A lane of the CPU: a place for one client at a time, whose steps are carried out at once.

training/cuda_lane.py carries them out otherwise; training/lanes.py spreads clients over lanes.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn

from c2v_sim.training.arena import Layout
from c2v_sim.training.local_client import LocalClient

Step = Callable[[Tensor], None]  # takes the sample ids of a batch


class Lane:
    """One client at a time; its work lies between `follow` and `join`, inside of `working`."""

    pads = False  # whether last batches are padded, so that few kinds of step are recorded

    def __init__(self, module: nn.Module, layout: Layout, device: torch.device) -> None:
        self.client = LocalClient(module, layout, device)

    @property
    def recorded(self) -> int:
        """How many kinds of step it has recorded."""
        return 0

    def prepare(self, version: int, *, capturable: bool) -> None:
        """The next steps are those of the CohortTraining `version`."""

    def upload(self, ids: np.ndarray) -> Tensor:
        """Sample ids on the device."""
        return torch.from_numpy(ids)

    def step(self, step: Step, ids: Tensor) -> None:
        """One local step on the samples `ids`."""
        step(ids)

    def follow(self) -> None:
        """What the lane does from now on comes after all that the caller has asked for."""

    def working(self) -> AbstractContextManager[object]:
        """The lane's work is asked for inside of this."""
        return nullcontext()

    def join(self) -> None:
        """What the caller asks for from now on comes after all that the lane was asked for."""
