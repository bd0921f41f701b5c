"""Ranks against lanes: the time of a round, the bytes on the wire, the memory of client state.

    python bench/ranks.py [--cases cnn resnet8] [--rounds N]

Time: 1 process with 2 lanes and 2 ranks with 1 lane each train the same rounds in turn; the ratio
is the median over rounds. Bytes: what the loopback interface sent in a round (in a network
namespace of our own where the system lets us have one, otherwise whoever else uses it is counted
too), against the least that an exact sum in the order of the clients needs. Memory: what FedDyn's
state of all clients takes in each of 1, 2 and 4 ranks.
"""

import argparse
import ctypes
import multiprocessing
import os
import socket
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import psutil
import torch
from round_cases import CASES, config, federation

from c2v_sim import RunConfig, Simulator
from c2v_sim.system.machine import keep_freed_memory
from c2v_sim.system.ranks import torchrun
from c2v_sim.training import aggregation

CLONE_NEWNET = 0x40000000
MEGABYTE = 1e6


def own_network() -> bool:
    """A loopback interface that nobody else uses; False where the system does not allow it."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) != 0:
        return False
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    return True


def sent_bytes() -> int:
    return psutil.net_io_counters(pernic=True)["lo"].bytes_sent


def one_rank(pipe: Connection, environment: dict[str, str], case: str, changes: dict) -> None:
    """A rank that does what comes through the pipe: "round", "state", or None for the end."""
    os.environ.update(environment)
    keep_freed_memory()
    large = changes.pop("large", aggregation.LARGE)
    with torchrun.joined(timeout=600):
        aggregation.LARGE = large
        settings = vars(config(CASES[case], lanes=1)) | changes
        simulator = Simulator(federation(CASES[case]), RunConfig(**settings))
        rounds = simulator.rounds()
        pipe.send(simulator.layout.size)
        while (wish := pipe.recv()) is not None:
            pipe.send(next(rounds).round if wish == "round" else fill_state(simulator))
        simulator.close()


def fill_state(simulator: Simulator) -> int:
    """Bytes that this process grows by when every client has a row."""
    rows = simulator._state.parts.rows["h"]
    row = torch.ones(rows.width)
    before = psutil.Process().memory_info().rss
    for client in range(rows.clients):
        rows.write(client, row)
    return psutil.Process().memory_info().rss - before


@contextmanager
def started(size: int, case: str, **changes: object) -> Iterator[list[Any]]:
    """Pipes to `size` ranks."""
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        port = taken.getsockname()[1]
    spawn, pipes = multiprocessing.get_context("spawn"), []
    common = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": port}
    common |= {"MASTER_ADDR": "localhost", "OMP_NUM_THREADS": 1}
    for rank in range(size):
        mine, its = spawn.Pipe()
        environment = {k: str(v) for k, v in (common | {"RANK": rank, "LOCAL_RANK": rank}).items()}
        arguments = (its, environment, case, dict(changes))
        spawn.Process(target=one_rank, args=arguments, daemon=True).start()
        pipes.append(mine)
    yield pipes
    for pipe in pipes:
        pipe.send(None)


def ask(pipes: list[Any], wish: str) -> list[int]:
    for pipe in pipes:
        pipe.send(wish)
    return [pipe.recv() for pipe in pipes]


def timed(pipes: list[Any]) -> float:
    begin = time.perf_counter()
    ask(pipes, "round")
    return time.perf_counter() - begin


def compare_speed(case: str, rounds: int) -> None:
    with started(1, case, lanes=2) as lanes, started(2, case) as ranks:
        for pipe in (*lanes, *ranks):
            pipe.recv()
        pairs = [(timed(lanes), timed(ranks)) for _ in range(rounds + 1)][1:]  # the first warms up
    ratio = statistics.median(a / b for a, b in pairs)
    one, two = (1e3 * statistics.median(times) for times in zip(*pairs, strict=True))
    print(f"| {case} | {one:.0f} | {two:.0f} | {ratio:.2f} |", flush=True)


def count_bytes(case: str, size: int, large: int, rounds: int = 3) -> None:
    with started(size, case, large=large) as pipes:
        (numbers, *_) = [pipe.recv() for pipe in pipes]
        ask(pipes, "round")
        before = sent_bytes()
        for _ in range(rounds):
            ask(pipes, "round")
        sent = (sent_bytes() - before) / rounds
    model, cohort = 4 * numbers, CASES[case].cohort
    least = model * (size - 1) * (cohort / size + 1)  # rows by columns, then the sums
    whole = model * (size - 1) * cohort
    kind = "columns" if large == 0 else "whole rows"
    own = least if large == 0 else whole
    shown = f"{sent / MEGABYTE:.1f} | {sent / own:.2f} | {sent / least:.2f}"
    print(f"| {case} | {size} | {kind} | {shown} |", flush=True)


def measure_memory(size: int) -> None:
    with started(size, "cnn", algorithm="feddyn") as pipes:
        for pipe in pipes:
            pipe.recv()
        grown = ask(pipes, "state")
    print(f"| {size} | {max(grown) / MEGABYTE:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=["cnn", "resnet8"])
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    whose = "this benchmark's alone" if own_network() else "the whole machine's"
    print("| case | ms, 1 process × 2 lanes | ms, 2 ranks × 1 lane | speed of ranks |")
    print("|---|---:|---:|---:|")
    for case in arguments.cases:
        compare_speed(case, arguments.rounds)
    print(f"\nTraffic is {whose}.\n")
    print("| case | ranks | rows meet as | MB a round | × of its least | × of the least |")
    print("|---|---:|---|---:|---:|---:|")
    for size in (2, 4):
        for large in (1 << 62, 0):
            count_bytes(arguments.cases[0], size, large)
    print("\n| ranks | MB of FedDyn's state of 100 clients (cnn) in a rank |\n|---:|---:|")
    for size in (1, 2, 4):
        measure_memory(size)


if __name__ == "__main__":
    main()
