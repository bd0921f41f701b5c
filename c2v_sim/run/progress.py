"""What people see of a run: what begins, its progress, what it came to.

Progress is on standard error, as a live bar in a terminal and as plain lines elsewhere.
"""

import shlex
import sys
import time
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

from c2v_sim.algorithms.fedavg import GLOBAL
from c2v_sim.index.checkpoint import Training
from c2v_sim.index.config import IndexConfig
from c2v_sim.index.dsa_ign import LOSSES
from c2v_sim.ops._dispatch import native_missing
from c2v_sim.run.files import ACCURACIES, cost_so_far
from c2v_sim.simulator.groups.clusters import cluster_words
from c2v_sim.simulator.records import Result, RoundRecord
from c2v_sim.simulator.simulator import Simulator
from c2v_sim.system import ranks
from c2v_sim.system.text import percent
from c2v_sim.training.stacked import make_blocks

SECONDS_BETWEEN_LINES = 5.0
SHARE_TESTED = 0.5  # of the clients: a mean over fewer is not that of most of them
COMMAND = ["python", "-m", "c2v_sim.run"]


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
        shown = ""
        if record.accuracy is not None:
            shown = f"clients {percent(record.accuracy)}  whole {percent(record.accuracy_global)}  "
            shown = shown if record.tested == GLOBAL else f"{record.tested} models: {shown}"
        print(
            f"round {record.round}/{self.rounds}  {shown}loss {record.train_loss:.3f}  "
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


def show_start(simulator: Simulator, out: Path, label: str) -> None:
    """On standard error: what is trained, with which settings, and where."""
    config, federation = simulator.config, simulator.federation
    lines = [
        f"c2v_sim: {federation.dataset.name}, {federation.partition.convention}, "
        f"{federation.partition.clients} clients, cohort {simulator.cohort_size}",
        f"  {config.model} ({simulator.layout.parameter_count:,} parameters), {config.algorithm}, "
        f"rounds: {config.rounds} × {config.local_epochs} local epochs, seed {config.seed}, "
        f"{simulator.lanes.count} lanes on {simulator.device}",
        f"  training: {simulator.path}",
        f"  {simulator.row_plan.sentence}" + improved(simulator),
        f"  settings: {label}" + (" (a short run, not the paper's)" if "quick" in label else ""),
        f"  run directory: {out}",
    ]
    if ranks.size() > 1:
        lines.append(f"  {ranks.size()} ranks" + idle_ranks(simulator))
    lines += [f"  {line}"] if (line := few_tested(simulator)) else []
    if simulator.pretrained is not None:
        start = simulator.pretrained
        lines.append(f"  starts from {start.file} ({start.source}); classifier {start.classifier}")
    if simulator.device.type == "cpu" and native_missing:
        lines.append(f"  torch references run instead of the native operators: {native_missing}")
    print("\n".join(lines), file=sys.stderr, flush=True)


def idle_ranks(simulator: Simulator) -> str:
    """That some ranks have nothing to train, in words."""
    what, shares = "clients", simulator.cohort_size
    if simulator.path.stacked:
        blocks = make_blocks([1] * shares, simulator.path.block)
        what, shares = "blocks of clients that train together", len(blocks)
    idle = ranks.size() - shares
    return f", of which {idle} idle: a cohort has {shares} {what}" if idle > 0 else ""


def improved(simulator: Simulator) -> str:
    """What the client index does in this run, in words."""
    config, index = simulator.config, simulator.index
    if not config.improve:
        return ""
    encoder = f", {index.provenance['encoder']} encoder" if index else ""
    words = f"; {config.index} index{encoder} improves {', '.join(config.improve)}"
    return words + (cluster_words(simulator.algorithm) if "clustering" in config.improve else "")


def show_result(simulator: Simulator, result: Result, out: Path, label: str) -> None:
    """On standard output: the accuracies of the best and of the last round, and what they took."""
    best, final = result.best, result.final
    dataset, config = simulator.federation.dataset, simulator.config
    print(f"\n{dataset.name}, {config.model}, {config.algorithm}, seed {config.seed}, {label}")
    measures = ACCURACIES if result.evaluated else {}
    if measures:
        last = f"last ({final.round})"
        print(
            f"{f'test accuracy ({final.tested})':<24}{f'best (round {best.round})':>18}{last:>12}"
        )
    else:
        print(f"not evaluated (eval_every = 0); training loss {final.train_loss:.3f}")
    for name, words in measures.items():
        at_best, at_end = percent(getattr(best, name)), percent(getattr(final, name))
        print(f"{words:<24}{at_best:>18}{at_end:>12}")
    if final.accuracy_shared is not None:
        at_best, at_end = percent(best.accuracy_shared), percent(final.accuracy_shared)
        print(f"{'not personal, mean':<24}{at_best:>18}{at_end:>12}")
    for kind, value in (final.held_out or {}).items():
        print(f"{f'never trained on ({kind})':<24}{'':>18}{percent(value):>12}")
    time_taken = f"time: {cost_so_far(out, result.records).words()}"
    for line in filter(None, (few_tested(simulator), time_taken, f"run directory: {out}")):
        print(line)


def few_tested(simulator: Simulator) -> str:
    """How many clients the accuracies speak of, where that is not all."""
    tested, clients = simulator.federation.tested, simulator.federation.partition.clients
    if tested == clients:
        return ""
    samples = len(simulator.federation.partition.test.flat)
    line = f"tested: {tested} of {clients} clients, {samples} samples; the others have none"
    if tested >= SHARE_TESTED * clients:
        return line
    return f"warning: {line}. Means over clients say nothing about most of them: test more samples"


def resume_command(out: Path) -> str:
    return shlex.join([*COMMAND, "--resume", str(out)])
