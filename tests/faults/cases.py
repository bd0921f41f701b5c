"""All points of driver.py: `python -P cases.py FOLDER POINTS JOBS ONLY MINUTES`.

failing_calls.c must be preloaded. Prints every problem and how many points were tried of what;
FOLDER/results.json has the same. FOLDER/tried.jsonl has a line for each point as soon as it was
tried: the next driver that is given the folder goes on with the others.
"""

import contextlib
import ctypes
import errno
import importlib
import io
import json
import os
import random
import re
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import matplotlib.figure
from commands import COMMANDS, OLDER, fork
from kill_driver import wait

from c2v_sim.index import checkpoint as index_checkpoint
from c2v_sim.index.encoders import builtin
from c2v_sim.system.errors import ERROR

ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EACCES": errno.EACCES}
FULL, KILLED = "full from here", "killed"
ERRORS |= {FULL: errno.ENOSPC, KILLED: 0}
SENTENCE = re.compile(f"^({re.escape(ERROR)}|failed: )", re.MULTILINE)  # of a command, of cells
SECONDS = 900  # after which a command is taken to hang, also on a busy machine
TRIED = "tried.jsonl"
MINE = {"mine.txt": "a note", "data/own.npz": "own data"}

LIBRARY = ctypes.CDLL(None)
LIBRARY.faults_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_int]
LIBRARY.faults_calls.restype = ctypes.c_long
LIBRARY.faults_hit.restype = ctypes.c_char_p


@dataclass
class Case:
    command: str
    error: str
    number: int
    call: str = ""  # that failed
    codes: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    log: str = ""

    @property
    def name(self) -> str:
        return f"{self.command}-{self.number}-{self.error.replace(' ', '-')}"


def begin(command: str, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # of a driver that was stopped here
    (folder / "data").mkdir(parents=True)
    for name, text in MINE.items():
        (folder / name).write_text(text)
    COMMANDS[command].given(folder)


def execute(command: str, folder: Path) -> tuple[int, str]:
    """Fork a process that runs the command in `folder`; its exit code and what it said."""
    log, modules = folder.with_suffix(".log"), folder.with_suffix(".modules")

    def work() -> int:
        signal.alarm(SECONDS)
        os.environ["C2V_DATA"] = str(folder / "data")
        index_checkpoint.SECONDS_BETWEEN_CHECKPOINTS = -1.0  # a checkpoint after every step
        code = COMMANDS[command].main(COMMANDS[command].words(folder))
        modules.write_text(json.dumps(list(sys.modules)))
        return code

    with log.open("w") as file:
        code = wait(fork(work, file.fileno()))
    return code, log.read_text(errors="replace")


def import_what_it_imported(folder: Path) -> None:
    """Here, so that no later command has to: some modules are imported when first needed."""
    for name in json.loads(folder.with_suffix(".modules").read_text()):
        with contextlib.suppress(Exception):  # some exist only for those who made them
            importlib.import_module(name)


def try_point(case: Case, folder: Path, reference: dict) -> None:
    """Fill in what became of the point."""
    begin(case.command, folder)
    error, lasting = ERRORS[case.error], case.error == FULL
    LIBRARY.faults_arm(os.fsencode(f"{folder}/"), case.number, error, lasting)
    code, log = execute(case.command, folder)
    LIBRARY.faults_disarm()
    case.call, case.codes, case.log = os.fsdecode(LIBRARY.faults_hit()), [code], log
    case.problems += first_end(case, folder, code, log, reference)
    if code == 0 and not differences(case.command, folder, reference):
        return
    code, log = execute(case.command, folder)
    case.codes.append(code)
    case.log += f"---- again\n{log}"
    case.problems += second_end(case, folder, code, log, reference)


def first_end(case: Case, folder: Path, code: int, log: str, reference: dict) -> list[str]:
    """What is wrong after the fault."""
    problems = [] if case.call else ["no call failed"]
    if "Traceback" in log:
        problems.append("a traceback")
    if code == 0:
        problems += differences(case.command, folder, reference, log)
        problems += left_over(folder)
    elif code != -signal.SIGKILL and (code not in (1, 2) or not SENTENCE.search(log)):
        problems.append("it ended without a sentence")
    return problems + lost(folder, code)


def second_end(case: Case, folder: Path, code: int, log: str, reference: dict) -> list[str]:
    """What is wrong after the command was resumed, or given again."""
    complete = code == 2 and "nothing is left to do" in log
    if code and not complete:
        return [f"the second time it ended with {code}"]
    told = case.log if complete else ""  # its warnings are all that will be said
    problems = differences(case.command, folder, reference, told) + lost(folder, 0)
    # A cache may keep a file that a killed process had begun: others may be writing there.
    problems += left_over(folder / "out" if case.error == KILLED else folder)
    return [f"the second time: {problem}" for problem in problems]


def differences(command: str, folder: Path, reference: dict, log: str = "") -> list[str]:
    """Where the outputs are not those of the undisturbed command; not what a warning names."""
    try:
        now = json.loads(json.dumps(COMMANDS[command].bits(folder)))
    except Exception as error:
        return [f"the outputs cannot be read: {error!r}"]
    differing = [n for n in now.keys() | reference.keys() if now.get(n) != reference.get(n)]
    listing = ("files", "names")  # of what is there; the warning names what is too many or missing
    told = [n for n in differing if "warning" in log and (n in log or n in listing)]
    return [f"{name} differs" for name in sorted(differing) if name not in told]


def left_over(folder: Path) -> list[str]:
    """Temporary files; a lock that is free is none."""
    names = [str(p.relative_to(folder)) for p in folder.rglob("*")]
    return [f"{name} is left" for name in names if ".partial" in name or ".tmp" in name]


def lost(folder: Path, code: int) -> list[str]:
    """Files of the user that are not as they were."""
    gone = [name for name, text in MINE.items() if read(folder / name) != text]
    report = folder / "report.html"
    if code and report.exists() and not read(report).endswith(OLDER):
        gone.append(report.name)
    return [f"{name} was the user's and has changed" for name in gone]


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def warm_up() -> None:
    """What is the same in every process and takes long: once, before the first fork."""
    builtin._constants()
    figure = matplotlib.figure.Figure()
    figure.subplots().set(title="fonts", xlabel="%")
    figure.savefig(io.BytesIO(), format="png")


def whole(command: str, folder: Path) -> tuple[dict, int]:
    """The undisturbed command: its bits, and how many calls it makes."""
    begin(command, folder)
    LIBRARY.faults_arm(os.fsencode(f"{folder}/"), 0, 0, 0)
    code, log = execute(command, folder)
    calls = LIBRARY.faults_calls()
    LIBRARY.faults_disarm()
    if code or left_over(folder):
        sys.exit(f"the undisturbed {command} ended with {code}, {left_over(folder)}:\n{log}")
    return json.loads(json.dumps(COMMANDS[command].bits(folder))), calls


def drawn(points: list[Case], count: int) -> list[Case]:
    """`count` of the points, the same every time, as many of each command; 0: all.

    In an order by chance: whatever part of them is tried is a sample of the whole.
    """
    draw, out = random.Random(7), list[Case]()
    if not 0 < count < len(points):
        return draw.sample(points, len(points))
    of_command = [
        [p for p in points if p.command == name] for name in {p.command: 0 for p in points}
    ]
    of_command.sort(key=len)  # what one lacks the others have more of
    for number, some in enumerate(of_command):
        share = (count - len(out)) // (len(of_command) - number)
        out += draw.sample(some, min(share, len(some)))
    return draw.sample(out, len(out))


def already_tried(folder: Path) -> Iterator[Case]:
    """In this folder, also by a driver that was stopped; the line it was writing is left out."""
    lines = (folder / TRIED).read_text().splitlines() if (folder / TRIED).exists() else []
    for line in lines:
        with contextlib.suppress(json.JSONDecodeError):
            yield Case(**json.loads(line))


def try_all(cases: list[Case], folder: Path, references: dict, until: float) -> int:
    """Each in turn, in a process that counts for itself, none begun after `until`."""
    LIBRARY.faults_begin()
    for case in cases:
        if time.monotonic() > until:
            break
        here = folder / case.name
        try_point(case, here, references[case.command])
        for problem in case.problems:
            what = f"{case.command}, call {case.number} ({case.call}), {case.error}"
            print(f"{here.name}: {what}: {problem}", flush=True)
        if not case.problems:
            shutil.rmtree(here)
        with (folder / TRIED).open("a") as file:
            file.write(json.dumps(asdict(case)) + "\n")
    return 0


def try_side_by_side(
    cases: list[Case], folder: Path, references: dict, jobs: int, until: float
) -> None:
    started = [
        fork(lambda n=n: try_all(cases[n::jobs], folder, references, until), 1) for n in range(jobs)
    ]
    codes = [wait(process) for process in started]
    if any(codes):
        sys.exit(f"the driver itself failed: {codes}")


def main(folder: Path, count: int, jobs: int, only: str, minutes: float) -> int:
    until = time.monotonic() + 60 * minutes
    references, points = {}, []
    warm_up()
    for name in [name for name in COMMANDS if only in ("", name) or name == "run"]:
        references[name], calls = whole(name, folder / f"{name}-whole")
        import_what_it_imported(folder / f"{name}-whole")
        print(f"{name}: {calls} calls that change files", flush=True)
        if only in ("", name):
            points += [Case(name, e, n) for n in range(1, calls + 1) for e in ERRORS]
    chosen = {case.name: case for case in drawn(points, count)}
    before = {case.name for case in already_tried(folder)}
    left = [case for name, case in chosen.items() if name not in before]
    try_side_by_side(left, folder, references, jobs, until)
    done = [case for case in already_tried(folder) if case.name in chosen]
    tried = Counter(f"{case.command}, {case.error}" for case in done)
    bad = sum(bool(case.problems) for case in done)
    (folder / "results.json").write_text(json.dumps([asdict(case) for case in done], indent=1))
    print(*(f"{key}: {n}" for key, n in sorted(tried.items())), sep="\n")
    print(f"{len(done)} points of {len(points)}, {bad} with a problem", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    _, folder, points, jobs, only, minutes = sys.argv
    sys.exit(main(Path(folder), int(points), int(jobs), only, float(minutes)))
