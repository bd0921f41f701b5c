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

With --beside-original this happens twice, for the algorithm as it is and with the client index, and
beside/ sets the two runs side by side.

Exit codes: 0 done, 1 training or writing failed, 2 bad input, 130 Ctrl-C, 143 SIGTERM.
"""

import argparse
import shlex
import sys
import traceback
from contextlib import ExitStack, closing
from pathlib import Path

from c2v_sim.beside.pair import (
    HALVES,
    PAGE,
    Pair,
    create_pair,
    is_finished,
    is_pair,
    new_pair,
    resumed_pair,
)
from c2v_sim.beside.table import write_comparison
from c2v_sim.config import to_toml
from c2v_sim.index.encoders.embed import Embeddings
from c2v_sim.report.__main__ import make_report
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
from c2v_sim.run.settings import EXISTS, check_options, parser, resumed_settings, settings_of
from c2v_sim.simulator.simulator import Simulator
from c2v_sim.system.errors import (
    CheckpointError,
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

SCRATCH = "scratch"  # in the run directory, for client state beyond the memory


def prepare(
    arguments: argparse.Namespace,
) -> tuple[Simulator, Embeddings | None, Path, str]:
    """Everything that can go wrong with the input goes wrong here, before a file is written."""
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
    embeddings = prepare_index(simulator, arguments.resume)
    if arguments.resume:
        warn_of_versions(arguments.resume)
    return simulator, embeddings, out, label


def prepare_pair(arguments: argparse.Namespace) -> Pair:
    """The same for two runs that are compared."""
    check_options(arguments)
    if not arguments.resume:
        return new_pair(*settings_of(arguments), arguments.out)
    folder = arguments.resume
    configs = {h: resumed_settings(arguments, folder / h, of_pair=True) for h in HALVES}
    warn_of_versions(folder / HALVES[0])
    return resumed_pair(folder, configs)


def execute(
    simulator: Simulator,
    embeddings: Embeddings | None,
    journal: Journal,
    label: str,
    interrupt: Interrupt,
    pair: Path | None = None,
) -> int:
    """Train in a run directory that exists, perhaps one of a pair's; the exit code."""
    again = resume_command(pair or journal.out)
    try:
        bring_index(simulator, journal.out, embeddings)
        journal.resume()
        go_on(journal.out, simulator)
        show_start(simulator, journal.out, label)
        train(simulator, journal)
        return finish(journal, label, pair)
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
        of_half = f" of {journal.out.name}" if pair else ""
        done = f"{interrupt.word} {when}{of_half}{lost}"
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


def finish(journal: Journal, label: str, pair: Path | None = None) -> int:
    """Write and show the results, of a pair's run only write them; the exit code says whether all
    of them are on disk."""
    simulator, out, shown = journal.simulator, journal.out, 0
    failed = write_results(out, simulator, journal.result)
    whole = not failed and journal.error is None
    kept = "training is done" + (f" and everything is saved in {out}" if whole else "")
    if pair is None:
        shown = printed(lambda: show_result(simulator, journal.result, out, label), kept)
    if whole:
        return shown
    lost = journal.unsaved() + [f"{name} ({e.strerror or e})" for name, e in failed.items()]
    message = f"training is done, but {out} could not be written. Not saved: {', '.join(lost)}"
    if failed or journal.torn:
        error = next(iter(failed.values()), journal.error)
        help = remedy(error).capitalize() if error else ""
        return fail(1, f"{message}. {help or 'Mend that'}, then: {resume_command(pair or out)}")
    print(f"c2v_sim: warning: {message}", file=sys.stderr, flush=True)
    return shown


def run_one(arguments: argparse.Namespace, command: str, interrupt: Interrupt) -> int:
    """A run, new or resumed; the exit code."""
    with ExitStack() as held:
        try:
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


def run_pair(arguments: argparse.Namespace, command: str, interrupt: Interrupt) -> int:
    """Two runs that are compared, new or resumed; the exit code."""
    with ExitStack() as held:
        try:
            if arguments.resume:
                held.enter_context(in_use(arguments.resume))
            pair = prepare_pair(arguments)
        except (ValueError, OSError) as error:
            return fail(2, str(error))
        except KeyboardInterrupt:
            return fail(interrupt.code, f"{interrupt.word} before training; nothing was written")
        try:
            if not arguments.resume:
                pair = create_pair(pair, command, numbered=arguments.out is None)
                held.enter_context(in_use(pair.out))
            for half in HALVES:
                code = train_half(pair, half, arguments, interrupt)
                if code:
                    return code
            interrupt.stop = None  # nothing is lost by an end from here on
            return show_comparison(pair.out)
        except ValueError as error:
            return fail(2, str(error))
        except FileExistsError:  # since `prepare_pair`
            return fail(2, EXISTS.format(pair.out))
        except OSError as error:
            return fail(1, f"{error.filename}: {error.strerror}; {way_on(pair.out)}")
        except KeyboardInterrupt:
            return fail(interrupt.code, f"{interrupt.word}; {way_on(pair.out)}")


def way_on(out: Path) -> str:
    return f"go on with: {resume_command(out)}" if is_pair(out) else "nothing was written"


def train_half(pair: Pair, half: str, arguments: argparse.Namespace, interrupt: Interrupt) -> int:
    """One run of a pair, unless it is finished; the exit code."""
    folder = pair.out / half
    if interrupt.number is not None:  # it came when the run before had nothing left to stop
        raise KeyboardInterrupt
    if is_finished(folder, pair.configs[half]):
        return 0
    interrupt.stop = None
    with in_use(folder), closing(pair.simulator(half)) as simulator:
        check_pretrained(folder, simulator.pretrained)
        embeddings = prepare_index(simulator, folder)
        interrupt.stop = simulator.stop
        journal = Journal(folder, simulator, tensorboard=arguments.tensorboard)
        return execute(simulator, embeddings, journal, pair.label, interrupt, pair.out)


def show_comparison(out: Path) -> int:
    """The table and the page of two finished runs; the exit code."""
    text = write_comparison(out)
    try:
        page = f"report: {make_report([out / half for half in HALVES], out / PAGE)}"
    except ValueError as error:
        page = f"no report page: {error}; then: {resume_command(out)}"
    kept = f"both runs and the table are saved in {out}"
    return printed(lambda: print(f"\n{text}\n\n{page}"), kept)


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit code."""
    arguments = parser().parse_args(argv)
    keep_freed_memory()
    command = shlex.join([*COMMAND, *(argv or sys.argv[1:])])
    resumed = arguments.resume
    paired = is_pair(resumed) if resumed else arguments.beside_original
    with Interrupt() as interrupt:
        if not arguments.print_config:
            return (run_pair if paired else run_one)(arguments, command, interrupt)
        try:
            settings = to_toml(settings_of(arguments)[0])
        except (ValueError, OSError) as error:
            return fail(2, str(error))
        return printed(lambda: print(settings, end=""), "nothing was written")


if __name__ == "__main__":
    sys.exit(main())
