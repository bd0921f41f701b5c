"""Two hosts as two network namespaces joined by a cable: `python rank_hosts.py FOLDER`.

Each has a name and an address of its own and a rank that can only reach the other through a veth
pair. FOLDER/results.json has for each case the exit codes, what was said, and the run directory.
Needs the right to make namespaces.
"""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from forked_ranks import Store, fork, run_ranks, wait
from rank_misfortunes import RUN, at_round, sent

from c2v_sim.run import __main__ as run

LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWUTS, CLONE_NEWNET = 0x04000000, 0x40000000
ADDRESSES = ("10.77.0.1", "10.77.0.2")
SECONDS = 20  # of --rank-timeout


def checked(code: int) -> None:
    if code:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class Host:
    """A process that does nothing but hold a network namespace."""

    def __init__(self, number: int) -> None:
        self.number, (ready, say) = number, os.pipe()

        def hold() -> int:
            checked(LIBC.unshare(CLONE_NEWNET))
            os.write(say, b"x")
            signal.pause()
            return 0

        self.process = fork(hold)
        os.read(ready, 1)

    def enter(self) -> None:
        """The calling process is on this host from now on."""
        with open(f"/proc/{self.process}/ns/net") as namespace:
            checked(LIBC.setns(namespace.fileno(), CLONE_NEWNET))
        checked(LIBC.unshare(CLONE_NEWUTS))
        socket.sethostname(f"host-{self.number}")

    def end(self) -> None:
        os.kill(self.process, signal.SIGKILL)
        wait(self.process)


def ip(*words: object) -> None:
    subprocess.run(["ip", *map(str, words)], check=True)


def on(host: Host, work: Callable[[], object]) -> int:
    """Fork a process on the host."""

    def there() -> int:
        host.enter()
        return work() or 0

    return fork(there)


def two_hosts() -> list[Host]:
    hosts = [Host(0), Host(1)]
    first, second = (host.process for host in hosts)
    ip("link", "add", "c2v0", "netns", first, "type", "veth", "peer", "c2v1", "netns", second)
    for host, address in zip(hosts, ADDRESSES, strict=True):

        def connect(cable: str = f"c2v{host.number}", address: str = address) -> None:
            ip("address", "add", f"{address}/24", "dev", cable)
            for device in ("lo", cable):
                ip("link", "set", device, "up")

        assert wait(on(host, connect)) == 0
    return hosts


def cut() -> None:
    """The cable is pulled out of the host that the caller is on."""
    ip("link", "set", "c2v1", "down")


def run_on_hosts(out: Path, log: Path, hook: Callable[[], None], attempts: int = 1) -> list:
    """Exit codes of a rank on each of two hosts, in each attempt."""
    hosts = two_hosts()
    store = Store(enter=hosts[0].enter)
    codes = []
    for attempt in range(attempts):
        processes = []
        for host in hosts:

            def work(host: Host = host, again: bool = attempt > 0) -> int:
                host.enter()
                if not again:
                    hook()
                arguments = f"{RUN} --rank-timeout {SECONDS} --out {out}"
                return run.main(arguments.split())

            environment = {
                "RANK": host.number,
                "LOCAL_RANK": 0,
                "WORLD_SIZE": 2,
                "LOCAL_WORLD_SIZE": 1,
                "MASTER_ADDR": ADDRESSES[0],
                "MASTER_PORT": store.port,
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "TORCHELASTIC_RESTART_COUNT": attempt,
                "GLOO_SOCKET_IFNAME": f"c2v{host.number}",
            }
            processes.append(fork(work, log, **environment))
        codes.append([wait(process) for process in processes])
    store.end()
    for host in hosts:
        host.end()
    return codes


def main(folder: Path) -> int:
    from kill_driver import bits

    cases: dict[str, tuple[Callable[[], None], int]] = {
        "whole": (lambda: None, 1),
        "killed": (at_round(3, 1, sent(signal.SIGKILL)), 2),
        "cut": (at_round(3, 1, cut), 1),
    }
    results: dict[str, dict] = {}
    for name, (hook, attempts) in cases.items():
        out, log = folder / name, folder / f"{name}.log"
        results[name] = {"codes": run_on_hosts(out, log, hook, attempts)}
        if name == "cut":
            again = run_ranks(1, lambda out=out: run.main(["--resume", str(out)]), log)
            results[name]["resumed"] = again
        results[name] |= {"said": log.read_text(errors="replace"), "bits": bits(out)}
    alone = folder / "alone"
    assert run_ranks(1, lambda: run.main(f"{RUN} --out {alone}".split()), folder / "a.log") == [0]
    results["alone"] = {"bits": bits(alone)}
    (folder / "results.json").write_text(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
