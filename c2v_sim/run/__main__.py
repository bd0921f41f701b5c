"""The main command: `python -m c2v_sim.run --dataset cifar10 --clients 100` (also `c2v-sim run`).

Control passes through, in this order:

settings.py    flags → RunConfig
build.py       the data, dealt to clients
simulator/     model, lanes and state (Simulator)
index.py       the client index, where one steers the run
files.py       the run directory, with manifest.py
journal.py     back to the newest checkpoint (checkpoint.py)
simulator/     the rounds; after each journal.py, tensorboard.py and progress.py
results.py     model, summary and curve

Exit codes: 0 done, 1 training or writing failed, 2 bad input, 130 Ctrl-C, 143 SIGTERM.
"""

import argparse
import shlex
import sys
import traceback
from contextlib import ExitStack
from pathlib import Path

from c2v_sim.config import to_toml
from c2v_sim.index.encoders.embed import Embeddings
from c2v_sim.run import files as run_directory
from c2v_sim.run.build import build_federation, new_path
from c2v_sim.run.index import bring_index, prepare_index
from c2v_sim.run.journal import Journal
from c2v_sim.run.progress import COMMAND, Progress, resume_command, show_result, show_start
from c2v_sim.run.results import write_results
from c2v_sim.run.resume import (
    check_federation,
    check_pretrained,
    check_settings,
    go_on,
    warn_of_versions,
)
from c2v_sim.run.settings import parser, settings_of
from c2v_sim.run.tensorboard import summary_writer
from c2v_sim.simulator.simulator import Simulator
from c2v_sim.system.errors import (
    CheckpointError,
    ConfigError,
    Interrupted,
    InUse,
    TrainingError,
    fail,
    remedy,
)
from c2v_sim.system.files import in_use
from c2v_sim.system.interrupt import Interrupt
from c2v_sim.system.machine import keep_freed_memory
from c2v_sim.system.output import printed

EXISTS = "--out {} exists and is never overwritten; name another, or --resume"
SCRATCH = "scratch"  # in the run directory, for client state beyond the memory


def prepare(
    arguments: argparse.Namespace,
) -> tuple[Simulator, Embeddings | None, Path, str]:
    """Everything that can go wrong with the input goes wrong here, before a file is written."""
    config, label = settings_of(arguments)
    if arguments.resume:
        check_settings(arguments.resume, config)
    if arguments.tensorboard:
        summary_writer()  # refused here where the package is missing
    out: Path | None = arguments.resume or arguments.out
    if arguments.out is not None and arguments.out.exists():
        raise ConfigError(EXISTS.format(out))
    saved = arguments.resume / run_directory.PARTITION if arguments.resume else None
    federation, config = build_federation(config, saved)
    if arguments.resume:
        check_federation(arguments.resume, federation)
    out = out or new_path("runs", federation.dataset.name, config.algorithm, config.seed)
    simulator = Simulator(federation, config, scratch=out / SCRATCH)
    if arguments.resume:
        check_pretrained(arguments.resume, simulator.pretrained)
    embeddings = prepare_index(simulator, arguments.resume)
    if arguments.resume:
        warn_of_versions(arguments.resume)
    return simulator, embeddings, out, label


def execute(
    simulator: Simulator,
    embeddings: Embeddings | None,
    journal: Journal,
    label: str,
    interrupt: Interrupt,
) -> int:
    """Train in a run directory that exists; the exit code."""
    again = resume_command(journal.out)
    try:
        bring_index(simulator, journal.out, embeddings)
        journal.resume()
        go_on(journal.out, simulator)
        show_start(simulator, journal.out, label)
        train(simulator, journal)
        return finish(journal, label)
    except CheckpointError as error:
        return fail(2, str(error))
    except TrainingError as error:
        if error.__cause__ is None:  # the same settings would end so again
            return fail(1, f"{error}. What was done before is in {journal.out}")
        traceback.print_exception(error.__cause__)
        return fail(1, f"{error}. {journal.goes_on().capitalize()}: {again}")
    except Interrupted:
        lost = f"; NOT saved: {', '.join(journal.unsaved())}" if journal.unsaved() else ""
        begun = simulator.index is not None or not simulator.config.needs_client_index
        when = f"after round {simulator.round}" if begun else "while the client index was made"
        done = f"{interrupt.word} {when}{lost}"
        return fail(interrupt.code, f"{done}; go on with: {again}")
    finally:
        journal.close()


def train(simulator: Simulator, journal: Journal) -> None:
    """All remaining rounds, each recorded as it ends; a checkpoint at the end or when stopped.

    After a failure no checkpoint is made: the last one is good, the state now may not be.
    """
    bar = Progress(simulator.config.rounds, simulator.cohort_size, done=simulator.round)
    try:
        for record in simulator.rounds(bar.client_done):
            journal.round_done(record)
            bar.round_done(record)
        journal.checkpoint()
    except Interrupted:
        journal.checkpoint()
        raise
    finally:
        bar.close()


def finish(journal: Journal, label: str) -> int:
    """Write and show the results; the exit code says whether all of them are on disk."""
    simulator, out = journal.simulator, journal.out
    failed = write_results(out, simulator, journal.result, recorded=journal.recorded)
    whole = not failed and journal.error is None
    kept = "training is done" + (f" and everything is saved in {out}" if whole else "")
    shown = printed(lambda: show_result(simulator, journal.result, out, label), kept)
    if whole:
        return shown
    lost = journal.unsaved() + [f"{name} ({e.strerror or e})" for name, e in failed.items()]
    message = f"training is done, but {out} could not be written. Not saved: {', '.join(lost)}"
    if failed:
        error = journal.error or next(iter(failed.values()))
        help = remedy(error).capitalize() or "Mend that"
        return fail(1, f"{message}. {help}, then: {resume_command(out)}")
    print(f"c2v_sim: warning: {message}", file=sys.stderr, flush=True)
    return shown


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit code."""
    arguments = parser().parse_args(argv)
    keep_freed_memory()
    with Interrupt() as interrupt, ExitStack() as held:
        try:
            if arguments.print_config:
                text = to_toml(settings_of(arguments)[0])
                return printed(lambda: print(text, end=""), "nothing was written")
            if arguments.resume and (arguments.resume / run_directory.CONFIG).is_file():
                held.enter_context(in_use(arguments.resume))
            simulator, embeddings, out, label = prepare(arguments)
            interrupt.stop = simulator.stop
        except (ValueError, OSError) as error:
            return fail(2, str(error))
        except KeyboardInterrupt:
            return fail(interrupt.code, f"{interrupt.word} before training; nothing was written")
        try:
            if not arguments.resume:
                command = shlex.join([*COMMAND, *(argv or sys.argv[1:])])
                out = run_directory.create_run_directory(
                    out, simulator, label, command, numbered=arguments.out is None
                )
                simulator.spill_to(out / SCRATCH)
                held.enter_context(in_use(out))
            journal = Journal(out, simulator, tensorboard=arguments.tensorboard)
            return execute(simulator, embeddings, journal, label, interrupt)
        except InUse as error:
            return fail(2, str(error))
        except FileExistsError:  # since `prepare`
            return fail(2, EXISTS.format(out))
        except OSError as error:
            return fail(1, f"{out}: {error.filename}: {error.strerror}; nothing was trained")
        finally:
            simulator.close()


if __name__ == "__main__":
    sys.exit(main())
