"""Runs on ranks that fail, are stopped or killed: `python rank_misfortunes.py FOLDER`.

A process of its own, which imports everything once and forks for every rank. FOLDER/results.json
has for each case the exit codes, all that the ranks said, and what the run directory holds.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib.figure  # noqa: F401  (imported here, so that no rank has to)
from forked_ranks import fork, free_port, run_ranks, start_ranks, wait
from kill_driver import bits

from c2v_sim.algorithms.feddyn import FedDyn
from c2v_sim.run import __main__ as run
from c2v_sim.run import build
from c2v_sim.simulator.simulator import Simulator
from c2v_sim.system import ranks

RUN = "--model linear --train-size 400 --test-size 100 --clients 8 --participation 0.5 --rounds 4"
RUN += " --local-epochs 1 --batch-size 16 --lanes 1 --checkpoint-every 2 --algorithm feddyn"
RUN += " --rank-timeout 60 --improve none"
Hook = Callable[[], None]


def before(owner: type, name: str, act: Callable[..., None]) -> None:
    """`act` is called first, with the same arguments."""
    original = getattr(owner, name)

    def both(*arguments):
        act(*arguments)
        return original(*arguments)

    setattr(owner, name, both)


def at_round(t: int, rank: int, act: Hook) -> Hook:
    """When `rank` is about to aggregate round `t`, it does `act`."""

    def now(_: Simulator, this: int, *others: object) -> None:
        if this == t and ranks.rank() == rank:
            act()

    return lambda: before(Simulator, "_aggregate", now)


def sent(number: int) -> Hook:
    return lambda: os.kill(os.getpid(), number)


def unlucky_client() -> None:
    """Some client that rank 1 trains in round 3 fails."""

    def raise_there(_: FedDyn, client) -> None:
        if client.round == 3 and ranks.rank() == 1:
            raise ZeroDivisionError("of bad luck")

    before(FedDyn, "begin", raise_there)


def unlucky_rank() -> None:
    raise ZeroDivisionError("where nobody expects it")


def other_version() -> None:
    """Rank 1 has another torch."""
    own = build.versions()

    def versions() -> dict[str, str]:
        return own | ({"torch": "1.13"} if ranks.rank() == 1 else {})

    build.versions = versions


class Cases:
    """Runs them, and collects what came of each."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.results = folder, dict[str, dict]()

    def command(self, arguments: str, hook: Hook) -> Callable[[], int]:
        def work() -> int:
            hook()
            return run.main(arguments.split())

        return work

    def note(self, name: str, codes: list[int], log: Path, out: Path | None = None) -> None:
        said = log.read_text(errors="replace") if log.exists() else ""
        self.results[name] = {"codes": codes, "said": said}
        if out is not None and (out / "result.json").exists():
            self.results[name]["bits"] = bits(out)

    def run(
        self, name: str, size: int, arguments: str, hook: Hook = lambda: None, out: str = ""
    ) -> None:
        path = self.folder / (out or name.replace(" ", "-"))
        log = self.folder / f"{name.replace(' ', '-')}.log"
        where = f" --resume {path}" if path.exists() else f"{arguments} --out {path}"
        self.note(name, run_ranks(size, self.command(where, hook), log), log, path)

    def differing(self, name: str, arguments: dict[int, str]) -> None:
        """Ranks with arguments of their own."""
        out = self.folder / name.replace(" ", "-")
        log = out.with_suffix(".log")
        start = f"{RUN} --out {out}"

        def work() -> int:
            return run.main(f"{start} {arguments[int(os.environ['RANK'])]}".split())

        self.note(name, run_ranks(len(arguments), work, log), log, out)

    def restarted(self, name: str, victim: int) -> None:
        """One rank is killed; the ranks are started anew in the same store, as torchrun does."""
        out, log = self.folder / name.replace(" ", "-"), self.folder / f"{name}.log"
        killed = at_round(3, victim, sent(signal.SIGKILL))
        arguments = f"{RUN} --out {out}"
        first, store = start_ranks(2, self.command(arguments, killed), log)
        codes = [wait(process) for process in first]
        self.note(f"{name}, first", codes, log)
        environment = {"TORCHELASTIC_RESTART_COUNT": 1}
        again, _ = start_ranks(2, self.command(arguments, int), log, store=store, **environment)
        self.note(name, [wait(process) for process in again], log, out)
        store.end()

    def alone(self) -> None:
        """The others never come."""
        log, port = self.folder / "alone.log", free_port()
        where = {"RANK": 1, "WORLD_SIZE": 2, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
        work = self.command(f"{RUN} --rank-timeout 1", lambda: None)
        self.note("alone", [wait(fork(work, log, **where))], log)


def main(folder: Path) -> int:
    cases = Cases(folder)
    cases.run("reference", 1, RUN)
    cases.run("client fails", 2, RUN, unlucky_client)
    cases.run("rank fails", 3, RUN, at_round(2, 2, unlucky_rank))
    cases.run("terminated", 2, RUN, at_round(2, 1, sent(signal.SIGTERM)))
    cases.run("terminated, resumed", 3, "", out="terminated")
    cases.run("interrupted alone", 1, RUN, at_round(1, 0, sent(signal.SIGINT)))
    cases.run("interrupted alone, resumed", 3, "", out="interrupted-alone")
    cases.restarted("killed", 1)
    cases.restarted("first killed", 0)
    cases.run("idle", 4, RUN.replace("0.5", "0.25"))
    cases.run("not finite", 2, f"{RUN} --lr 1e30")
    cases.differing("seeds", {0: "--seed 1", 1: "--seed 2"})
    missing = f"--dataset pacs --require-real-data --data-dir {folder} --train-size 0"
    cases.differing("no data", {0: "", 1: f"{missing} --test-size 0"})
    cases.differing("bad input", dict.fromkeys((0, 1), "--participation 2"))
    cases.differing("bad flag", dict.fromkeys((0, 1), "--model nothing"))
    cases.run("versions", 2, RUN, other_version)
    cases.alone()
    (folder / "results.json").write_text(json.dumps(cases.results))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
