"""Observers: objects that are told of a run, such as a logger of your own.

    class Lines:
        def on_round(self, record):
            print(record.round, record.accuracy)

    Simulator(federation, config).run(observers=[Lines()])

An observer has some of these methods:

    on_start(simulator)    before the first round: simulator.config, .federation, .index, .round, …
    on_round(record)       after every round; those before a resume come first
    on_finish(result)      no round comes any more: all are done, or the run was stopped

An observer that raises is left out from then on, with a warning: it cannot end a run. Where ranks
share a run, the observers of rank 0 are told.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from tqdm import tqdm

from c2v_sim.simulator.records import Result, RoundRecord
from c2v_sim.system import ranks

METHODS = ("on_start", "on_round", "on_finish")
Observer = object  # with some of METHODS


class Trains(Protocol):
    """What `run_observed` needs of a simulator."""

    def rounds(self) -> Iterator[RoundRecord]: ...


class Observers:
    """Several observers, told together; ValueError where one could never be told anything."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self.left = list(observers)
        for observer in self.left:
            check(observer)
        if not ranks.is_first():
            self.left = []

    def start(self, simulator: object, done: Sequence[RoundRecord] = ()) -> None:
        """`done`: the records of the rounds before a resume."""
        self._tell("on_start", simulator)
        for record in done:
            self.round(record)

    def round(self, record: RoundRecord) -> None:
        self._tell("on_round", record)

    def finish(self, result: Result) -> None:
        self._tell("on_finish", result)

    def _tell(self, method: str, what: object) -> None:
        for observer in list(self.left):
            call: Callable[[object], object] | None = getattr(observer, method, None)
            try:
                if call is not None:
                    call(what)
            except Exception as error:  # whatever a tracker's package raises
                self.left.remove(observer)
                why = str(error) or type(error).__name__
                line = f"warning: {named(observer)} ends here: {why}. The run goes on without it"
                tqdm.write(line, file=sys.stderr)  # above the bar, where there is one


def named(observer: Observer) -> str:
    """What a warning calls it: its own `__str__`, or its class."""
    cls = type(observer)
    return cls.__name__ if cls.__str__ is object.__str__ else str(observer)


def check(observer: Observer) -> None:
    """Refuse what has no method that is called, or a misspelt one."""
    has = {name for name in dir(observer) if name.startswith("on_")}
    known, unknown = sorted(has & set(METHODS)), sorted(has - set(METHODS))
    if isinstance(observer, type) or unknown or not known:
        what = "is a class; give an object of it"
        if not isinstance(observer, type):
            what = f"has {', '.join(unknown)}" if unknown else "has no method that is called"
        kind = observer if isinstance(observer, type) else type(observer)
        raise ValueError(f"observers: {kind.__name__} {what}; known: {', '.join(METHODS)}")


def run_observed(simulator: Trains, observers: Iterable[Observer]) -> Result:
    """All remaining rounds of `simulator`; the observers are told of each as it ends."""
    told, result = Observers(observers), Result()
    told.start(simulator)
    try:
        for record in simulator.rounds():
            result.records.append(record)
            told.round(record)
    finally:
        told.finish(result)
    return result
