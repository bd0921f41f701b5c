"""Progress of a run on standard error: a live bar in a terminal, plain lines elsewhere."""

import sys
import time
from typing import TextIO

from tqdm import tqdm

from c2v_sim.index.checkpoint import Training
from c2v_sim.index.config import IndexConfig
from c2v_sim.index.dsa_ign import LOSSES
from c2v_sim.simulator.records import RoundRecord
from c2v_sim.system.text import percent

SECONDS_BETWEEN_LINES = 5.0


class Progress:
    """Counts trained clients (rounds are too coarse for an ETA) and shows each round's result."""

    def __init__(
        self, rounds: int, cohort: int, done: int = 0, stream: TextIO | None = None
    ) -> None:
        self.stream = stream or sys.stderr
        self.rounds, self.first, self.start = rounds, done, time.perf_counter()
        self.bar = None
        if self.stream.isatty():
            self.bar = tqdm(
                total=rounds * cohort,
                initial=done * cohort,
                unit="client",
                file=self.stream,
                dynamic_ncols=True,
                desc=f"round {done + 1}/{rounds}",
            )

    def client_done(self, _: int) -> None:
        if self.bar is not None:
            self.bar.update()

    def round_done(self, record: RoundRecord) -> None:
        if self.bar is not None:
            self.bar.set_description(f"round {min(record.round + 1, self.rounds)}/{self.rounds}")
            if record.accuracy is not None:
                self.bar.set_postfix_str(
                    f"clients {percent(record.accuracy)}, whole {percent(record.accuracy_global)}, "
                    f"loss {record.train_loss:.3f}"
                )
            return
        elapsed = time.perf_counter() - self.start
        left = elapsed / (record.round - self.first) * (self.rounds - record.round)
        print(
            f"round {record.round}/{self.rounds}  clients {percent(record.accuracy)}  "
            f"whole {percent(record.accuracy_global)}  loss {record.train_loss:.3f}  "
            f"{sum(record.seconds.values()):.1f} s  ETA {left:.0f} s",
            file=self.stream,
            flush=True,
        )

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


class IndexProgress:
    """Progress of training DSA-IGN: a live bar in a terminal, a line now and then elsewhere."""

    def __init__(self, config: IndexConfig) -> None:
        self.total, self.last, self.start = config.points, 0.0, time.monotonic()
        self.unit = "epoch" if config.strategy == "global" else "round"
        self.first: int | None = None  # points done before this process
        self.bar: tqdm | None = None
        if sys.stderr.isatty():
            self.bar = tqdm(total=self.total, unit=self.unit, desc="DSA-IGN", dynamic_ncols=True)

    def point(self, training: Training) -> None:
        done = len(training.curve)
        shown = "  ".join(f"{n} {v:.3f}" for n, v in zip(LOSSES, training.curve[-1], strict=True))
        if self.bar is not None:
            self.bar.update(done - self.bar.n)
            self.bar.set_postfix_str(shown)
            return
        now = time.monotonic()
        if self.first is None:
            self.first = done - 1
        if now - self.last > SECONDS_BETWEEN_LINES or done == self.total:
            self.last = now
            left = (now - self.start) / (done - self.first) * (self.total - done)
            line = f"{self.unit} {done}/{self.total}  {shown}  ETA {left:.0f} s"
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
