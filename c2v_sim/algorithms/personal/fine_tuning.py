"""FedAvg, and in evaluations the global model after some epochs on the client's own samples.

    w            as FedAvg
    evaluation   of each client: w after `epochs` local epochs of SGD on its training samples

Nothing is kept: an evaluation trains all tested clients, so choose eval_every accordingly.
"""

from dataclasses import dataclass

from c2v_sim.algorithms.fedavg import PERSONAL, Algorithm


@dataclass
class FineTuning(Algorithm):
    epochs: int = 1
    name = "fine-tuning"

    @property
    def tested(self) -> str:
        return PERSONAL

    @property
    def tuned_epochs(self) -> int:
        return self.epochs

    def has_own(self, client: int) -> bool:
        return True
