"""Kills runs at chosen points and resumes them: `python kill_driver.py FOLDER`.

A process of its own, which imports everything once and forks for every run, before torch has any
thread: a run then costs a fraction of a second. Results go to FOLDER/results.json: for each case
the kills that happened, and what the run directory holds after the last resume.

A point is (kind, n): the n-th file operation in the run directory (by Python's audit events), the
n-th client trained, the n-th evaluation entered or left, the n-th step of the index training, its
n-th checkpoint begun or done; or, from outside, the moment when n rounds are recorded and some
milliseconds have passed.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

# Slow to import: here, so that no run has to.
import altair  # noqa: F401
import matplotlib.figure  # noqa: F401
import scipy.stats  # noqa: F401
import torch._dynamo  # noqa: F401
from safetensors import safe_open
from safetensors.torch import load_file

from c2v_sim.beside.pair import HALVES, is_pair
from c2v_sim.data.load import default_data_dir
from c2v_sim.index import __main__ as index
from c2v_sim.index import checkpoint as index_checkpoint
from c2v_sim.index import training as index_training
from c2v_sim.run import __main__ as run
from c2v_sim.run.files import parse_rounds, to_csv
from c2v_sim.run.progress import Progress
from c2v_sim.simulator.simulator import Simulator
from c2v_sim.system.files import LOCK
from c2v_sim.system.tensor_file import checksum

RUN = "--model linear --train-size 400 --test-size 100 --clients 8 --participation 0.5 --rounds 12"
RUN += " --local-epochs 1 --batch-size 16 --lanes 2 --checkpoint-every 3 --momentum 0.9"
INDEX = "--train-size 360 --test-size 60 --partition by-domain --clients-per-domain 2 --epochs 3"
INDEX += " --hidden 32 --threads 1 --batch-size 64"
# Client state, and a client index that is built inside the run.
IMPROVED = RUN.replace("--rounds 12", "--rounds 6") + " --algorithm feddyn --index-epochs 2"
IMPROVED += " --improve sampling aggregation local --index-dropout 0"
PAIR = f"{IMPROVED} --beside-original --rounds 4 --train-size 160 --index-hidden 32"
PAIR += " --index-upload 16 --index-batch-size 32"
COMMANDS = {
    "run": (run.main, [*RUN.split(), "--improve", "none"]),
    "index": (index.main, INDEX.split()),
    "improved": (run.main, IMPROVED.split()),
    "pair": (run.main, PAIR.split()),
}
FILE_EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.listdir"}


class Points:
    """Counts the points that pass in this process, and kills it at one of them."""

    def __init__(self, folder: Path, kill_at: tuple[str, int] | None) -> None:
        self.folder, self.kill_at, self.seen = str(folder), kill_at, {}

    def passed(self, kind: str) -> None:
        self.seen[kind] = self.seen.get(kind, 0) + 1
        if (kind, self.seen[kind]) == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(self, event: str, arguments: tuple) -> None:
        if event in FILE_EVENTS and self.folder in str(arguments[0]):
            self.passed("file")

    def around(self, owner: object, name: str, before: str | None, after: str | None) -> None:
        original = getattr(owner, name)

        def counted(*arguments, **options):
            if before:
                self.passed(before)
            result = original(*arguments, **options)
            if after:
                self.passed(after)
            return result

        setattr(owner, name, counted)

    def install(self) -> None:
        sys.addaudithook(self.audit)
        self.around(Progress, "client_done", "client", None)
        self.around(Simulator, "evaluate", "evaluate", "evaluated")
        self.around(index_training, "losses", "step", None)
        self.around(index_checkpoint.Checkpoints, "save", "save", "saved")


def start(command: str, out: Path, kill_at: tuple[str, int] | None) -> int:
    """Fork a process that begins or resumes the run in `out`; its id."""
    process = os.fork()
    if process:
        return process
    log = os.open(out.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    index_checkpoint.SECONDS_BETWEEN_CHECKPOINTS = -1.0  # a checkpoint after every step
    main, arguments = COMMANDS[command]
    points = Points(out, kill_at)
    points.install()
    code = 99
    try:
        code = main(["--resume", str(out)] if out.exists() else [*arguments, "--out", str(out)])
        out.with_suffix(".counts").write_text(json.dumps(points.seen))
    finally:
        sys.stderr.flush()
        os._exit(code)


def wait(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def kill_after_round(process: int, out: Path, rounds: int, delay: float) -> int:
    """Kill when `rounds` records are in the file and `delay` has passed; the exit status."""
    file = out / "rounds.jsonl"
    while not (file.exists() and file.read_bytes().count(b"\n") >= rounds):
        if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            break
        time.sleep(0.001)
    time.sleep(delay)
    os.kill(process, signal.SIGKILL)
    return wait(process)


def killed_and_resumed(command: str, out: Path, points: list[tuple]) -> dict:
    """Kill at each point in turn, resuming in between, then let it come to its end."""
    statuses = []
    shutil.rmtree(default_data_dir() / "indices", ignore_errors=True)  # a cached index would do
    for kind, number, *delay in points:
        if kind == "time":
            process = start(command, out, None)
            statuses.append(kill_after_round(process, out, number, delay[0]))
        else:
            statuses.append(wait(start(command, out, (kind, number))))
    code = wait(start(command, out, None))
    log = out.with_suffix(".log").read_text(errors="replace")
    return {"statuses": statuses, "code": code, "bits": bits(out), "log": log[-3000:]}


def without_seconds(texts: dict) -> dict:
    """The texts stored in a file; an index and its training also say how long they took."""
    texts = {name: text for name, text in texts.items() if name != "seconds"}
    if "provenance" not in texts:
        return texts
    about = json.loads(texts["provenance"])
    del about["seconds"], about["stages"]
    return texts | {"provenance": about}


def bits(out: Path) -> dict:
    """Everything in the directory that must be the same, the clock left out."""
    if is_pair(out):
        found = {half: bits(out / half) for half in HALVES}
        return found | {"files": sorted(p.name for p in out.iterdir())}

    def sha256(path: Path) -> str:
        return hashlib.sha256(path.read_bytes()).hexdigest()

    found: dict = {"files": sorted(p.name for p in out.iterdir() if p.name != LOCK)}
    for path in sorted(out.glob("*.safetensors")):
        # Texts stored in such a file come in any order; a run's model has only one.
        with safe_open(str(path), framework="pt") as file:
            found[path.name] = [checksum(load_file(path)), without_seconds(file.metadata())]
    if (out / "model.safetensors").exists():
        found["model"] = sha256(out / "model.safetensors")
    if (out / "rounds.jsonl").exists():
        lines = (out / "rounds.jsonl").read_bytes().splitlines()
        found["table agrees"] = (out / "rounds.csv").read_text() == to_csv(parse_rounds(lines))
        records = map(json.loads, lines)
        found["records"] = [{k: v for k, v in r.items() if k != "seconds"} for r in records]
    if (out / "result.json").exists():
        result = json.loads((out / "result.json").read_text())
        result.pop("index_origin")  # a kill after the index was cached: found there
        found["result"] = {k: v for k, v in result.items() if "seconds" not in k}
    kept = sorted((out / "checkpoints").glob("*"))
    for path in kept[-1:]:  # the one before may be of an interruption's round
        found[path.name] = {p.name: sha256(p) for p in path.glob("*.safetensors")}
    return found


def cases(counts: dict[str, dict[str, int]]) -> dict[str, tuple[str, list[tuple]]]:
    """The cases, chosen once and for all among the points that a whole run passes."""
    draw = random.Random(7)
    chosen: dict[str, tuple[str, list[tuple]]] = {}

    def add(command: str, *kinds: str) -> None:
        points: list[tuple] = []
        for kind in kinds:
            if kind == "time":
                points.append((kind, draw.randint(1, 6), draw.random() * 0.03))
            else:
                # A second kill comes while there is still something to do after the first.
                most = counts[command][kind] if len(kinds) == 1 else 4
                points.append((kind, draw.randint(1, most)))
        chosen[f"{len(chosen)} {command} {points}"] = (command, points)

    for _ in range(6):
        add("run", "file")
    for kind in ("client", "client", "evaluate", "evaluated"):
        add("run", kind)
    for _ in range(3):
        add("run", "time")
    add("run", "client", "file", "evaluate")
    add("run", "file", "time")
    for kind in ("file", "file", "step", "save", "saved"):
        add("index", kind)
    for kind in ("file", "step", "saved", "client"):
        add("improved", kind)
    clients = counts["pair"]["client"]  # of both runs
    for points in (
        [("client", clients // 4)],  # in the original
        [("client", 3 * clients // 4)],  # in the improved one
        [("evaluated", 4), ("step", 2), ("file", 40)],  # between the two, in the index, in a resume
    ):
        chosen[f"{len(chosen)} pair {points}"] = ("pair", points)
    add("pair", "file")
    return chosen


def main(folder: Path) -> None:
    reference, counts = {}, {}
    for command in COMMANDS:
        out = folder / f"{command}-whole"
        code = wait(start(command, out, None))
        if code:
            sys.exit(
                f"the whole {command} ended with {code}:\n{out.with_suffix('.log').read_text()}"
            )
        reference[command] = bits(out)
        counts[command] = json.loads(out.with_suffix(".counts").read_text())
    results = {}
    for number, (name, (command, points)) in enumerate(cases(counts).items()):
        done = killed_and_resumed(command, folder / f"case-{number}", points)
        results[name] = {"command": command, "points": points} | done
    everything = {"reference": reference, "counts": counts, "cases": results}
    (folder / "results.json").write_text(json.dumps(everything))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
