"""What is kept of a round, and of a run."""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from c2v_sim.algorithms.fedavg import GLOBAL
from c2v_sim.simulator.evaluation import Accuracy
from c2v_sim.simulator.steering import Similarity

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
    tested: str = GLOBAL  # whose accuracy it is: that of the global, cluster or personal models
    accuracy_shared: float | None = None  # where that is personal: of the global or cluster models
    held_out: dict[str, float] | None = None  # accuracy on clients that never train, by `tested`
    clusters: list[int] | None = None  # of the cohort's clients, where there are several models


@dataclass
class Result:
    """All records of a run, and the best and last accuracy among them."""

    records: list[RoundRecord] = field(default_factory=list)

    @property
    def evaluated(self) -> list[RoundRecord]:
        return [r for r in self.records if r.accuracy is not None]

    @property
    def best(self) -> RoundRecord:
        """With the best accuracy; the last round, without one, where none was evaluated."""
        return max(self.evaluated or self.records[-1:], key=lambda r: r.accuracy or 0.0)

    @property
    def late(self) -> float | None:
        """The mean of the later half of the evaluations, which depends less on chance than the
        best; None where none was."""
        half = self.evaluated[len(self.evaluated) // 2 :]
        return statistics.fmean(r.accuracy or 0.0 for r in half) if half else None

    @property
    def final(self) -> RoundRecord:
        """The last that was evaluated; the last round where none was."""
        return (self.evaluated or self.records)[-1]


class Stopwatch:
    """`with clock("train"):` adds what happens inside to `seconds["train"]`."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds[stage] += time.perf_counter() - begin


def make_record(
    *,
    dataset: str,
    t: int,
    clients: np.ndarray,  # [k]
    weights: Tensor,  # [k]
    losses: Tensor,  # [k]
    accuracy: Accuracy | None,
    tested: str,
    clusters: np.ndarray | None,  # [k]
    similarity: Similarity | None,
    seconds: dict[str, float],
) -> RoundRecord:
    """The record of round `t`."""
    if similarity is not None and len(similarity.scores) > MOST_SCORES:
        similarity = None
    return RoundRecord(
        dataset=dataset,
        round=t,
        cohort=clients.tolist(),
        weights=rounded(weights, 9),
        train_loss=losses.mean().item(),
        accuracy=accuracy.mean if accuracy else None,
        accuracy_weighted=accuracy.weighted if accuracy else None,
        accuracy_worst10=accuracy.worst10 if accuracy else None,
        accuracy_global=accuracy.whole if accuracy else None,
        accuracy_domains=list(accuracy.domains) if accuracy and accuracy.domains else None,
        seconds={stage: round(value, 4) for stage, value in seconds.items()},
        scores=rounded(similarity.scores, 6) if similarity else None,
        history=rounded(similarity.history, 6) if similarity else None,
        tested=tested,
        accuracy_shared=shared_mean(accuracy),
        held_out=accuracy.held_out or None if accuracy else None,
        clusters=None if clusters is None else clusters.tolist(),
    )


def shared_mean(accuracy: Accuracy | None) -> float | None:
    """Over clients with test samples, by the models that are not personal."""
    if accuracy is None or accuracy.shared is None:
        return None
    return float(np.nanmean(accuracy.shared))


def rounded(values: Tensor, digits: int) -> list[float]:
    return [round(value, digits) for value in values.tolist()]
