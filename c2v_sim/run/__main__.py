"""The main command: `python -m c2v_sim.run --dataset cifar10 --clients 100` (also `c2v-sim run`).

Control passes through, in this order:

settings.py    flags → RunConfig
build.py       the data, dealt to clients
simulator/     model, lanes and state (Simulator)
index.py       the client index, where one steers the run
files.py       the run directory, with manifest.py
journal.py     back to the newest checkpoint (checkpoint.py)
train.py       the rounds (simulator/); after each journal.py, trackers/ and progress.py
results.py     model, summary and curve

With --beside-original this happens twice, for the algorithm as it is and with the client index, and
beside/ sets the two runs side by side.

Exit codes: 0 done, 1 training or writing failed, 2 bad input, 130 Ctrl-C, 143 SIGTERM.
"""

import argparse
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path

from c2v_sim.beside.command import run_pair
from c2v_sim.beside.pair import is_pair
from c2v_sim.config import to_toml
from c2v_sim.index.encoders.embed import Embeddings
from c2v_sim.run import files as run_directory
from c2v_sim.run.build import build_federation, check_alike, new_path
from c2v_sim.run.files import SCRATCH
from c2v_sim.run.index import prepare_index
from c2v_sim.run.journal import Journal
from c2v_sim.run.progress import COMMAND
from c2v_sim.run.resume import check_federation, check_pretrained, check_settings, warn_of_versions
from c2v_sim.run.settings import EXISTS, check_options, check_ranks, parser, settings_of
from c2v_sim.run.trackers import trackers_of, wanted
from c2v_sim.run.train import execute
from c2v_sim.simulator.simulator import Simulator
from c2v_sim.system import ranks
from c2v_sim.system.errors import ConfigError, InUse, fail
from c2v_sim.system.files import in_use
from c2v_sim.system.interrupt import Interrupt
from c2v_sim.system.machine import keep_freed_memory
from c2v_sim.system.output import printed
from c2v_sim.system.ranks import torchrun


def prepare(
    arguments: argparse.Namespace,
) -> tuple[Simulator, Embeddings | None, Path, str]:
    """Everything that can go wrong with the input goes wrong here, before a file is written."""
    with ranks.same_fate():
        simulator, out, label = make_simulator(arguments)
    if ranks.size() > 1:
        check_alike(simulator.federation, simulator.config, simulator.device)
    embeddings = prepare_index(simulator, arguments.resume)
    if arguments.resume:
        warn_of_versions(arguments.resume)
    return simulator, embeddings, out, label


def make_simulator(arguments: argparse.Namespace) -> tuple[Simulator, Path, str]:
    """What this process trains with, where it goes, and what the settings are called."""
    check_options(arguments)
    config, label = settings_of(arguments)
    if arguments.resume:
        check_settings(arguments.resume, config)
    out: Path | None = arguments.resume or arguments.out
    saved = arguments.resume / run_directory.PARTITION if arguments.resume else None
    federation, config = build_federation(config, saved)
    if arguments.resume:
        check_federation(arguments.resume, federation)
    out = out or new_path("runs", federation.dataset.name, config.algorithm, config.seed)
    simulator = Simulator(federation, config, scratch=out / SCRATCH)
    if arguments.resume:
        check_pretrained(arguments.resume, simulator.pretrained)
    return simulator, out, label


def run_one(arguments: argparse.Namespace, command: str, interrupt: Interrupt) -> int:
    """A run, new or resumed, or this rank's part of it; the exit code."""
    arguments, writes = started_anew(arguments), ranks.is_first()
    with ExitStack() as held:
        try:
            if writes and arguments.resume and (arguments.resume / run_directory.CONFIG).is_file():
                held.enter_context(in_use(arguments.resume))
            simulator, embeddings, out, label = prepare(arguments)
            interrupt.stop = simulator.stop
        except (ValueError, OSError) as error:
            return fail(2, str(error))
        except KeyboardInterrupt:
            return fail(interrupt.code, f"{interrupt.word} before training; nothing was written")
        try:
            if not arguments.resume:
                out = begin_directory(arguments, out, simulator, label, command)
                simulator.spill_to(out / SCRATCH)
            if writes and not arguments.resume:
                held.enter_context(in_use(out))
            journal = Journal(out, simulator, trackers_of(arguments, out))
            return execute(simulator, embeddings, journal, label, interrupt)
        except (InUse, ConfigError) as error:
            return fail(2, str(error))
        except FileExistsError:  # since `prepare`
            return fail(2, EXISTS.format(out))
        except OSError as error:
            return fail(1, f"{out}: {error.filename}: {error.strerror}; nothing was trained")
        finally:
            simulator.close()


def begin_directory(
    arguments: argparse.Namespace, out: Path, simulator: Simulator, label: str, command: str
) -> Path:
    """Make the run directory, on rank 0 alone; where it is."""

    def make() -> Path:
        made = run_directory.create_run_directory(
            out, simulator, label, command, numbered=arguments.out is None
        )
        torchrun.remember("out", str(made))
        return made

    return ranks.from_first(make)


def started_anew(arguments: argparse.Namespace) -> argparse.Namespace:
    """Where torchrun has started the ranks again, they go on in the directory of the first."""
    out = torchrun.remembered("out")
    if out is None or arguments.resume:
        return arguments
    same = [f"--{name}" for name in wanted(arguments)]
    return parser().parse_args(["--resume", out, *same])


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit code."""
    with torchrun.quiet_but_once():
        arguments = parser().parse_args(argv)
    typed, resumed = argv or sys.argv[1:], arguments.resume
    try:
        paired = is_pair(resumed) if resumed else arguments.beside_original
        check_ranks(arguments, torchrun.started_with(), paired=paired)
        if arguments.ranks and not torchrun.started_this():
            options = (arguments.max_restarts, arguments.rank_timeout)
            return torchrun.launch(arguments.ranks, ["-m", "c2v_sim.run", *typed], *options)
        with torchrun.joined(arguments.rank_timeout):
            command = shlex.join([*COMMAND, *typed])
            return torchrun.run_as_rank(lambda: run(arguments, command, paired))
    except ConfigError as error:  # the ranks did not meet, or make no sense
        return fail(2, str(error)) if torchrun.is_first_of_host() else 2


def run(arguments: argparse.Namespace, command: str, paired: bool) -> int:
    """What the arguments ask for; the exit code."""
    keep_freed_memory()
    with Interrupt() as interrupt:
        if not arguments.print_config:
            return (run_pair if paired else run_one)(arguments, command, interrupt)
        try:
            text = to_toml(settings_of(arguments)[0])
        except (ValueError, OSError) as error:
            return fail(2, str(error))
        return printed(lambda: print(text, end=""), "nothing was written")


if __name__ == "__main__":
    sys.exit(main())
