"""What a run took: the seconds of its rounds and of its client index.

An index counts with all that it took when it was built, embeddings included, also where a run finds
it in the cache or is given a file: runs are then compared by what their methods need. `origin` says
which of them it was, and every total says it too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from c2v_sim.index.client_index import BUILT, CACHE
from c2v_sim.simulator.records import RoundRecord


@dataclass(frozen=True)
class Cost:
    """Seconds."""

    rounds: float
    index: float | None  # None: not recorded; 0 where there is none
    origin: str | None  # of the index: built, cache or file; None: there is none, or an older run

    @property
    def total(self) -> float:
        return self.rounds + (self.index or 0.0)

    def words(self) -> str:
        """`32.1 s: client index 18.2 s, rounds 13.9 s`."""
        rounds = f"rounds {self.rounds:.1f} s"
        if self.index == 0.0:
            return rounds
        if self.index is None:
            return f"{rounds}; not counted: the client index, whose time is not recorded"
        return f"{self.total:.1f} s: client index {self.index:.1f} s{self.where()}, {rounds}"

    def where(self) -> str:
        """What the index's seconds are, where this run did not spend them."""
        if self.origin in (BUILT, None):
            return ""
        place = "the cache" if self.origin == CACHE else "a file"
        return f" (taken from {place}; it took this when it was built)"


def cost_of(records: Sequence[RoundRecord], index: dict[str, Any] | None) -> Cost:
    """`index`: what the run's manifest says of it."""
    rounds = sum(sum(record.seconds.values()) for record in records)
    return Cost(rounds, index.get("seconds") if index else 0.0, (index or {}).get("origin"))
