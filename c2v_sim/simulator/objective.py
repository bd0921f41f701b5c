"""What the clients of a run train by: the algorithm, and case study iii added to its loss."""

from dataclasses import dataclass, replace

from torch import Tensor

from c2v_sim.algorithms import Algorithm
from c2v_sim.algorithms.fedavg import check_trains_by_loss, forward
from c2v_sim.algorithms.local_regulariser import LocalRegulariser
from c2v_sim.training.local_client import LocalClient
from c2v_sim.training.local_training import PADDING
from c2v_sim.training.optimisers import StepTerms


@dataclass(frozen=True, eq=False)
class Regularised:
    """The algorithm's local training with `loss + regulariser` as its loss."""

    algorithm: Algorithm
    regulariser: LocalRegulariser
    index_grows: bool = False  # in every round: a step recorded on a GPU would be of no use
    plain_sgd = False

    def __post_init__(self) -> None:
        check_trains_by_loss(self.algorithm, "improve = local adds to")

    @property
    def name(self) -> str:
        return self.algorithm.name

    @property
    def capturable(self) -> bool:
        return self.algorithm.capturable and not self.index_grows

    @property
    def leaves_out_padding(self) -> bool:
        return self.algorithm.leaves_out_padding

    @property
    def steps_per_batch(self) -> int:
        return self.algorithm.steps_per_batch

    def begin(self, client: LocalClient) -> None:
        self.algorithm.begin(client)

    def step_terms(self, client: LocalClient) -> StepTerms:
        return self.algorithm.step_terms(client)

    def local_loss(self, client: LocalClient, x: Tensor, y: Tensor) -> Tensor:
        z, logits = forward(client.module, x)
        loss = self.algorithm.loss(client, x, y, z, logits)
        real = y != PADDING if client.padded else None
        return loss + self.regulariser(client.module, z, logits, real)

    def after_batch(self, client: LocalClient) -> None:
        self.algorithm.after_batch(client)

    def end(self, client: LocalClient) -> None:
        self.algorithm.end(client)

    def by(self, index: Tensor) -> "Regularised":
        """The same with another index [n, D]."""
        return replace(self, regulariser=replace(self.regulariser, index=index))
