"""Commands at the same time: `python -P tests/faults/together.py`.

Eight runs on one cold cache, four sweeps in one directory, four resumes of one index, and a run
that is reported on while it trains. All must end in the bits of the same command alone. Imports
everything once and forks. Exit code 1 and a sentence for everything that did not end well.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from commands import COMMANDS, RUN, bits_of_run, fork
from kill_driver import wait

from c2v_sim.report import __main__ as report
from c2v_sim.run.index import SETTINGS
from c2v_sim.run.progress import Progress
from c2v_sim.simulator.records import RoundRecord

RUNS, SWEEPS, RESUMES, REPORTS = 8, 4, 4, 6
LONG = RUN.replace("--rounds 3", f"--rounds {10 * REPORTS}")


def start(
    name: str, words: list[str], data: Path, log: Path, prepare: Callable = lambda: None
) -> int:
    """Fork a process for a command; its id. prepare: called in it."""

    def work() -> int:
        os.environ["C2V_DATA"] = str(data)
        prepare()
        return COMMANDS[name].main(words)

    with log.open("w") as file:
        return fork(work, file.fileno())


def alone(name: str, folder: Path) -> dict:
    """What the command leaves with nobody beside it."""
    (folder / "data").mkdir(parents=True)
    COMMANDS[name].given(folder)
    log = folder.with_suffix(".log")
    code = wait(start(name, COMMANDS[name].words(folder), folder / "data", log))
    if code:
        sys.exit(f"{name} alone ended with {code}:\n{log.read_text()}")
    return COMMANDS[name].bits(folder)


def runs_on_one_cache(folder: Path) -> list[str]:
    """Each needs the images, the embeddings and the index, of which there is none."""
    reference = alone("run", folder / "run-alone")
    outs = [folder / f"run-{number}" for number in range(RUNS)]
    logs = [out.with_suffix(".log") for out in outs]
    words = [[*RUN.split(), "--out", str(out)] for out in outs]
    data = folder / "one-cache"
    started = [start("run", w, data, log) for w, log in zip(words, logs, strict=True)]
    problems = []
    for process, out, log in zip(started, outs, logs, strict=True):
        code, said = wait(process), log.read_text()
        if code or "Traceback" in said:
            problems.append(f"{out.name} ended with {code}:\n{said}")
        elif bits_of_run(out) != reference:
            problems.append(f"{out.name} has other bits than the run alone")
    left = [p.name for p in data.rglob("*") if ".partial" in p.name or ".tmp" in p.name]
    return problems + [f"{name} is left in the cache" for name in left]


def sweeps_in_one_directory(folder: Path) -> list[str]:
    """One works; the others say so, and do nothing."""
    reference = alone("sweep", folder / "sweep-alone")
    here = folder / "sweep-together"
    here.mkdir()
    COMMANDS["sweep"].given(here)
    logs = [folder / f"sweep-{number}.log" for number in range(SWEEPS)]
    words = COMMANDS["sweep"].words(here)
    started = [start("sweep", words, here / "data", log) for log in logs]
    codes = [wait(process) for process in started]
    said = [log.read_text() for log in logs]
    problems = [] if 0 in codes else ["none of the sweeps was done"]
    for code, text in zip(codes, said, strict=True):
        refused = code == 2 and "another process works in this directory" in text
        if "Traceback" in text or not (code == 0 or refused):
            problems.append(f"a sweep ended with {code}:\n{text}")
    if COMMANDS["sweep"].bits(here) != reference:
        problems.append("the sweep has other bits than alone")
    return problems


def resumes_of_one_index(folder: Path) -> list[str]:
    """One goes on with it; the others say so, or that it is done."""
    reference = alone("index", folder / "index-alone")
    here = folder / "index-together"
    (here / "out").mkdir(parents=True)
    shutil.copy(folder / "index-alone" / "out" / SETTINGS, here / "out")
    logs = [folder / f"index-{number}.log" for number in range(RESUMES)]
    words = ["--resume", str(here / "out")]
    started = [start("index", words, here / "data", log) for log in logs]
    codes = [wait(process) for process in started]
    problems = [] if codes.count(0) == 1 else [f"resumes of one index ended with {codes}"]
    for code, text in zip(codes, [log.read_text() for log in logs], strict=True):
        refused = code == 2 and ("another process works" in text or "nothing is left" in text)
        if "Traceback" in text or not (code == 0 or refused):
            problems.append(f"a resume ended with {code}:\n{text}")
    if COMMANDS["index"].bits(here) != reference:
        problems.append("the index has other bits than alone")
    return problems


def wait_in_every_tenth_round(gate: int) -> None:
    """The run is not to be done before the reports are: a byte lets it pass."""
    go_on = Progress.round_done

    def round_done(progress: Progress, record: RoundRecord) -> None:
        go_on(progress, record)
        if record.round % 10 == 0:
            os.read(gate, 1)

    Progress.round_done = round_done


def reports_on_a_run(folder: Path) -> list[str]:
    """A report of the directory as it is, again and again while the run goes on."""
    data, logs = folder / "report-data", [folder / "quiet.log", folder / "watched.log"]
    quiet, watched, page = folder / "quiet", folder / "watched", folder / "page.html"
    if wait(start("run", [*LONG.split(), "--out", str(quiet)], data, logs[0])):
        return [f"the run alone failed:\n{logs[0].read_text()}"]
    gate, passes = os.pipe()
    words = [*LONG.split(), "--out", str(watched)]
    process = start("run", words, data, logs[1], lambda: wait_in_every_tenth_round(gate))
    while not (watched / "rounds.jsonl").exists() and not has_ended(process):
        time.sleep(0.01)
    codes = []
    for _ in range(REPORTS):
        codes.append(report.main([str(watched), "--output", str(page)]))
        os.write(passes, b".")
    problems = [f"reports ended with {codes}"] if any(codes) else []
    if wait(process) or bits_of_run(watched) != bits_of_run(quiet):
        problems.append(f"the run that was watched is another:\n{logs[1].read_text()}")
    return problems


def has_ended(process: int) -> bool:
    return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        problems = runs_on_one_cache(folder) + sweeps_in_one_directory(folder)
        problems += resumes_of_one_index(folder)
        problems += reports_on_a_run(folder)  # last: it leaves threads, after which nobody forks
    print(*problems, sep="\n")
    print(f"{RUNS} runs on one cache, {SWEEPS} sweeps in one directory, {REPORTS} reports of a run")
    print(f"{RESUMES} resumes of one index")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
