"""The commands whose file calls are made to fail, tiny; what each leaves, the clock left out.

A command works in a folder of its own, with `data` in it for its caches: `given` puts there what it
needs, `words` is what is typed, `bits` is everything that must be the same whatever happened.
"""

import hashlib
import os
import re
import shutil
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from kill_driver import bits as bits_of_run

from c2v_sim.index import __main__ as index
from c2v_sim.report import __main__ as report
from c2v_sim.report.write import MARK
from c2v_sim.run import __main__ as run
from c2v_sim.sweep import __main__ as sweep
from c2v_sim.sweep import jobs
from c2v_sim.system.files import LOCK

TINY = "--train-size 48 --test-size 16 --clients 4 --partition iid"
RUN = f"{TINY} --model linear --participation 0.5 --rounds 3 --local-epochs 1 --batch-size 16"
RUN += " --lanes 1 --checkpoint-every 1 --algorithm feddyn --improve sampling aggregation"
RUN += " --index-epochs 1 --index-hidden 8 --index-dropout 0 --index-max-samples 2"
RUN += " --index-threads 1 --state-memory 0.000001"  # client rows go to a file
INDEX = f"{TINY} --epochs 1 --hidden 8 --threads 1 --batch-size 4 --max-samples 2"
SWEEP = """
[base]
model = "linear"
train_size = 48
test_size = 16
clients = 4
participation = 0.5
local_epochs = 1
batch_size = 16
rounds = 1
lanes = 1
index = "feature-average"
[axes.case]
original = {}
steered = { improve = ["sampling"] }
"""
MAINS = {"c2v_sim.run": run.main, "c2v_sim.index": index.main}
OLDER = "an older report"
# Notes of a table on the sources, which somebody may be editing meanwhile, and on the clock.
PASSING = re.compile(r"(Commit|The cells differ in their commit|Time): [^\n\"]*")
WRITTEN = re.compile(r"Written by c2v_sim.report on [^.]*\.")


@dataclass(frozen=True)
class Command:
    main: Callable[[list[str]], int]
    words: Callable[[Path], list[str]]
    bits: Callable[[Path], dict]
    given: Callable[[Path], None] = lambda folder: None


def begin_or_resume(words: str) -> Callable[[Path], list[str]]:
    def typed(folder: Path) -> list[str]:
        out = folder / "out"
        return ["--resume", str(out)] if out.exists() else [*words.split(), "--out", str(out)]

    return typed


def bits_of_sweep(folder: Path) -> dict:
    out = folder / "out"
    found = [*out.glob("*"), *out.glob("cells/*")]
    names = sorted(str(p.relative_to(out)) for p in found if p.name != LOCK)  # harmless where it is
    tables = {p.name: PASSING.sub("", p.read_text()) for p in out.glob("table.*")}
    cells = {}
    for cell in (p for p in (out / "cells").iterdir() if p.is_dir()):
        # Without its newest checkpoint a run that is done can still go on from the one before.
        cells |= {f"{cell.name} {k}": v for k, v in bits_of_run(cell).items() if k != "000001"}
    return {"names": names} | cells | tables


def bits_of_report(folder: Path) -> dict:
    page = WRITTEN.sub("", (folder / "report.html").read_text())
    return {"page": hashlib.sha256(page.encode()).hexdigest()} | bits_of_run(folder / "out")


def give_run(folder: Path) -> None:
    """A run that is done, and an older report of it."""
    shutil.copytree(folder.parent / "run-whole" / "out", folder / "out")
    (folder / "report.html").write_text(f"{MARK} {OLDER}")


def give_sweep(folder: Path) -> None:
    (folder / "sweep.toml").write_text(SWEEP)
    jobs.subprocess = SimpleNamespace(Popen=Forked, DEVNULL=None, STDOUT=None)


COMMANDS = {
    "run": Command(run.main, begin_or_resume(RUN), lambda folder: bits_of_run(folder / "out")),
    "index": Command(
        index.main, begin_or_resume(INDEX), lambda folder: bits_of_run(folder / "out")
    ),
    "sweep": Command(
        sweep.main,
        lambda f: [str(f / "sweep.toml"), "--out", str(f / "out"), "--jobs", "1"],
        bits_of_sweep,
        give_sweep,
    ),
    "report": Command(
        report.main,
        lambda f: [str(f / "out"), "--output", str(f / "report.html")],
        bits_of_report,
        give_run,
    ),
}


def fork(work: Callable[[], int], log: int) -> int:
    """The id of a new process, which writes to the descriptor `log` and ends with work's code."""
    process = os.fork()
    if process:
        return process
    code = 70
    try:
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = work()
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


class Forked:
    """A process of a sweep: the same function with the same words, without a new interpreter."""

    def __init__(self, command: list[str], *, stdout, preexec_fn, **_: object) -> None:
        module = command.index("-m") + 1

        def work() -> int:
            os.setsid()
            preexec_fn()
            return MAINS[command[module]](command[module + 1 :])

        self.pid, self.code = fork(work, stdout.fileno()), None

    def poll(self) -> int | None:
        if self.code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if ended else None
        return self.code

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)
