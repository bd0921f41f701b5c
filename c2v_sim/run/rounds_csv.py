"""The records of a run as a table: rounds.csv, one row a round, for spreadsheets and pandas.

Enters: the records, and the names of the domains where clients follow domains. Leaves: CSV text.
A list is text with spaces between (cohort, weights), the seconds and the domains have a column
each, a value that is not there is an empty field. The clients' scores and histories stay in
rounds.jsonl.
"""

import csv
import io
from collections.abc import Sequence
from typing import Any

from c2v_sim.simulator.records import STAGES, RoundRecord

PLAIN = (
    "dataset",
    "round",
    "train_loss",
    "accuracy",
    "accuracy_weighted",
    "accuracy_worst10",
    "accuracy_global",
)


def to_csv(records: Sequence[RoundRecord], domains: Sequence[str] = ()) -> str:
    """The table, with a line of names first; `domains` are those of the partition, in order."""
    text = io.StringIO()
    columns = [*PLAIN, *(f"accuracy_domain_{name}" for name in domains)]
    columns += [*(f"seconds_{name}" for name in STAGES), "cohort", "weights"]
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    for record in records:
        table.writerow(_row(record, len(domains)))
    return text.getvalue()


def _row(record: RoundRecord, domains: int) -> list[Any]:
    by_domain = record.accuracy_domains
    return [
        *(getattr(record, name) for name in PLAIN),
        *([""] * domains if by_domain is None else by_domain),
        *(record.seconds[name] for name in STAGES),
        " ".join(map(str, record.cohort)),
        " ".join(map(str, record.weights)),
    ]
