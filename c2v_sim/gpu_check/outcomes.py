"""Checks are all run, whatever fails, and written into one file; a sentence says what to report."""

import json
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from c2v_sim.system.files import write_atomically

PASSED, FAILED, NOT_DONE = "passed", "failed", "not done"
Facts = dict[str, object]
Check = Callable[[], Facts]


class CheckFailed(Exception):
    """What is wrong, in words; `facts` are what was found out all the same."""

    def __init__(self, why: str, facts: Facts | None = None) -> None:
        super().__init__(why)
        self.facts = facts or {}


class NotHere(Exception):
    """Why a check cannot be done on this machine."""


@dataclass(frozen=True)
class Outcome:
    name: str
    status: str
    why: str = ""
    facts: Facts = field(default_factory=dict)
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.status:<9}{self.name}" + (f": {self.why}" if self.why else "")


def run_all(checks: Mapping[str, Check]) -> Iterator[Outcome]:
    """One outcome after another; an error of any kind is a failure of its check alone."""
    for name, check in checks.items():
        start = time.perf_counter()
        status, why, facts = PASSED, "", {}
        try:
            facts = check()
        except NotHere as reason:
            status, why = NOT_DONE, str(reason)
        except CheckFailed as error:
            status, why, facts = FAILED, str(error), error.facts
        except Exception as error:
            status, why = FAILED, f"{type(error).__name__}: {error}"
            facts = {"traceback": traceback.format_exc()}
        yield Outcome(name, status, why, facts, time.perf_counter() - start)


def write_report(path: Path, machine: Mapping[str, object], outcomes: list[Outcome]) -> None:
    report = {"machine": dict(machine), "checks": [asdict(outcome) for outcome in outcomes]}
    text = json.dumps(report, indent=1, default=str) + "\n"
    write_atomically(path, lambda part: part.write_text(text))


def what_to_report(path: Path, outcomes: list[Outcome], gpu: str) -> str:
    """One sentence."""
    count = {s: sum(o.status == s for o in outcomes) for s in (PASSED, FAILED, NOT_DONE)}
    failed = [o.name for o in outcomes if o.status == FAILED]
    told = f"{count[PASSED]} checks passed, {count[FAILED]} failed, {count[NOT_DONE]} not done"
    where = f"on {gpu}" if gpu else "on a machine without a GPU"
    if failed:
        names = ", ".join(failed)
        return f"Please open an issue with the file {path} and the words: {told} {where} ({names})."
    if not gpu:
        return f"Nothing to report: {told} {where}; {path} says what could not be done."
    return f"Please open an issue with the file {path} and the words: {told} {where}."
