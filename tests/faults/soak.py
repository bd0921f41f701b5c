"""A long run of a tiny federation: `python -P tests/faults/soak.py --rounds 2000`.

FedDyn with case studies i, ii and iii and a run directory as the main command makes it. Clients
hold from 5 to 54 samples, and the index draws some of them into cohorts far more often than others.
After a tenth of the rounds are measured: memory, file handles, threads, and what lies on disk.
Exit code 1 and a sentence where one of them grows that must not.
"""

import argparse
import contextlib
import gc
import os
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from torch import nn

from c2v_sim import Federation, RunConfig, Simulator
from c2v_sim.index.build import build_index
from c2v_sim.index.config import IndexConfig
from c2v_sim.run.files import ROUNDS, TABLE, create_run_directory
from c2v_sim.run.journal import Journal
from c2v_sim.run.train import execute
from c2v_sim.simulator.records import RoundRecord
from c2v_sim.system.interrupt import Interrupt

CLIENTS, FEATURES, CLASSES = 40, 200, 5
RECORDS = (ROUNDS, TABLE)  # what may grow on disk: a line per round in each
MEGABYTE = 2**20
# Of memory: the records of 2,000 rounds are 9 MB; a copy of the model (0.6 MB) forgotten in every
# round is more after 40.
MOST_GROWTH = 24 * MEGABYTE


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.classifier = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, CLASSES)

    def features(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.hidden(x))


@dataclass(frozen=True)
class Sample:
    round: int
    memory: int  # bytes
    handles: int
    threads: int
    records: int  # bytes on disk that grow with the rounds
    rest: int  # all other bytes of the run directory
    joined: int  # clients that have been in a cohort

    @classmethod
    def now(cls, out: Path, joined: int, done: int) -> "Sample":
        gc.collect()
        process = psutil.Process()
        sizes = {p: p.stat().st_size for p in out.rglob("*") if p.is_file()}
        records = sum(size for p, size in sizes.items() if p.name in RECORDS)
        return cls(
            done,
            process.memory_info().rss,
            process.num_fds(),
            process.num_threads(),
            records,
            sum(sizes.values()) - records,
            joined,
        )


class Watched(Journal):
    """Takes a sample now and then."""

    def watch(self, every: int) -> None:
        self.every, self.samples, self.cohorts = every, list[Sample](), Counter[int]()

    def round_done(self, record: RoundRecord) -> None:
        super().round_done(record)
        self.cohorts.update(record.cohort)
        if record.round % self.every == 0:
            self.samples.append(Sample.now(self.out, len(self.cohorts), record.round))


def uneven_federation() -> Federation:
    owner = torch.cat([torch.full((5 + i * i % 50,), i) for i in range(CLIENTS)])
    g = torch.Generator().manual_seed(0)
    x = torch.randn(len(owner), FEATURES, generator=g)
    return Federation.from_arrays(x, x[:, :CLASSES].argmax(1), owner)


def soak(out: Path, rounds: int) -> Watched:
    """Train; what was seen on the way."""
    every = rounds // 10
    config = RunConfig(
        algorithm="feddyn",
        improve=("sampling", "aggregation", "local"),
        participation=0.1,
        tau=0.02,
        rounds=rounds,
        local_epochs=1,
        batch_size=8,
        lanes=2,
        checkpoint_every=max(1, every // 5),
        eval_every=5,
    )
    federation, settings = uneven_federation(), IndexConfig(epochs=1, hidden=8, max_samples=1)
    g = torch.Generator().manual_seed(1)
    samples = len(federation.dataset.y_train)
    made_up = torch.randn(samples, 512, generator=g), torch.randn(CLASSES, 512, generator=g)
    index = build_index(federation, settings, embeddings=made_up)
    simulator = Simulator(federation, config, model=Net(), index=index, scratch=out / "scratch")
    create_run_directory(out, simulator, "soak", "soak")
    journal = Watched(out, simulator)
    journal.watch(every)
    with Interrupt() as interrupt, contextlib.closing(simulator):
        code = execute(simulator, None, journal, "soak", interrupt)
    assert code == 0, "the run failed"
    return journal


def complaints(samples: list[Sample]) -> list[str]:
    """What grows that must not, from the first sample on (disk: from when all clients joined)."""
    first, last, out = samples[0], samples[-1], []
    if last.memory - first.memory > MOST_GROWTH:
        out.append(f"memory grew by {(last.memory - first.memory) / MEGABYTE:.1f} MiB")
    for name in ("handles", "threads"):
        seen = [getattr(sample, name) for sample in samples]
        if max(seen) > seen[0]:
            out.append(f"{name} grew: {seen}")
    complete = [sample.rest for sample in samples if sample.joined == last.joined]
    if max(complete) - min(complete) > 1000:  # a round's number in a manifest has more digits
        out.append(f"the run directory grew beside its records: {complete}")
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=2000)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    with contextlib.ExitStack() as held:
        folder = held.enter_context(tempfile.TemporaryDirectory())
        nowhere = held.enter_context(open(os.devnull, "w"))
        held.enter_context(contextlib.redirect_stderr(nowhere))  # a line per round
        journal = soak(Path(folder) / "run", rounds)
    for s in journal.samples:
        print(
            f"round {s.round}: {s.memory / MEGABYTE:.1f} MiB, {s.handles} handles, {s.threads} "
            f"threads; on disk {s.rest} bytes + {s.records / s.round:.0f} per round; "
            f"{s.joined} of {CLIENTS} clients joined"
        )
    counts = sorted(journal.cohorts.values())
    print(f"a client took part in {counts[0]} to {counts[-1]} of {rounds} rounds")
    bad = complaints(journal.samples)
    print(*(bad or ["flat"]), sep="\n")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
