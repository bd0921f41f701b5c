"""Lines of a table about models that are not the one global one, and clients that never train.

In %, mean and population standard deviation over seeds, of the last round.
"""

from collections.abc import Callable

from c2v_sim.algorithms.fedavg import TESTED
from c2v_sim.sweep.tables.results import Entry, mean, spread

Value = Callable[[Entry], tuple[float | None, float | None]]


def shared(entry: Entry) -> tuple[float | None, float | None]:
    """Of the models that personal ones are made of."""
    return over_seeds(entry, lambda result: result.get("final_accuracy_shared"))


def held_out(kind: str) -> Value:
    """Of the models of one kind on clients that never train."""
    return lambda entry: over_seeds(
        entry, lambda result: (result.get("held_out_accuracy") or {}).get(kind)
    )


def over_seeds(
    entry: Entry, number: Callable[[dict], float | None]
) -> tuple[float | None, float | None]:
    results = [run.run.result for run in entry.runs if run.run and run.run.result]
    values = [100 * value for result in results if (value := number(result)) is not None]
    return mean(values), spread(values)


LINES: dict[str, Value] = {"not personal, last": shared} | {
    f"never trained on, {kind}, last": held_out(kind) for kind in TESTED
}
