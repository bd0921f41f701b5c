"""What is kept of a round, and of a run."""

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from c2v_sim.simulator.evaluation import Accuracy

STAGES = ("sample", "train", "aggregate", "evaluate")  # of a round, in order
MOST_SCORES = 1000  # clients; beyond, a record leaves the scores out: a line must stay readable


@dataclass(frozen=True)
class RoundRecord:
    """What happened in one round; accuracies are None in a round without evaluation."""

    dataset: str  # as it must be named, stand-ins included
    round: int
    cohort: list[int]
    weights: list[float]
    train_loss: float
    accuracy: float | None  # the paper's measure: mean over all clients
    accuracy_weighted: float | None
    accuracy_worst10: float | None
    accuracy_global: float | None
    accuracy_domains: list[float] | None
    seconds: dict[str, float]  # of each of STAGES
    scores: list[float] | None = None  # s [M], where an index steers
    history: list[float] | None = None  # H [M], likewise


@dataclass
class Result:
    """All records of a run, and the best and last accuracy among them."""

    records: list[RoundRecord] = field(default_factory=list)

    @property
    def evaluated(self) -> list[RoundRecord]:
        return [r for r in self.records if r.accuracy is not None]

    @property
    def best(self) -> RoundRecord:
        return max(self.evaluated, key=lambda r: r.accuracy or 0.0)

    @property
    def final(self) -> RoundRecord:
        return self.evaluated[-1]


def make_record(
    dataset: str,
    t: int,
    clients: np.ndarray,
    weights: Tensor,
    losses: Tensor,
    result: Accuracy | None,
    seconds: np.ndarray,
    scores: Tensor | None,
    history: Tensor | None,
) -> RoundRecord:
    """The record of round `t`; seconds are those of the four stages."""
    if len(scores if scores is not None else ()) > MOST_SCORES:
        scores = history = None
    return RoundRecord(
        dataset=dataset,
        round=t,
        cohort=clients.tolist(),
        weights=[round(w, 9) for w in weights.tolist()],
        train_loss=losses.mean().item(),
        accuracy=result.mean if result else None,
        accuracy_weighted=result.weighted if result else None,
        accuracy_worst10=result.worst10 if result else None,
        accuracy_global=result.whole if result else None,
        accuracy_domains=list(result.domains) if result and result.domains else None,
        seconds={name: round(float(s), 4) for name, s in zip(STAGES, seconds, strict=True)},
        scores=None if scores is None else [round(v, 6) for v in scores.tolist()],
        history=None if history is None else [round(v, 6) for v in history.tolist()],
    )
