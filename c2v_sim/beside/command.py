"""The run command with --beside-original: two runs, one table, one page; the exit code."""

import argparse
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
from c2v_sim.report.write import make_report
from c2v_sim.run.index import prepare_index
from c2v_sim.run.journal import Journal
from c2v_sim.run.progress import resume_command
from c2v_sim.run.settings import EXISTS, check_options, resumed_settings, settings_of
from c2v_sim.run.trackers import trackers_of
from c2v_sim.run.train import execute
from c2v_sim.system.errors import fail
from c2v_sim.system.files import in_use
from c2v_sim.system.interrupt import Interrupt
from c2v_sim.system.output import printed


def prepare_pair(arguments: argparse.Namespace) -> Pair:
    """The same for two runs that are compared."""
    check_options(arguments)
    if not arguments.resume:
        return new_pair(*settings_of(arguments), arguments.out)
    folder = arguments.resume
    configs = {h: resumed_settings(arguments, folder / h, of_pair=True) for h in HALVES}
    return resumed_pair(folder, configs)


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
    if is_finished(folder, pair.configs[half].rounds):
        return 0
    interrupt.stop = None
    with in_use(folder), closing(pair.simulator(half)) as simulator:
        embeddings = prepare_index(simulator, folder)
        interrupt.stop = simulator.stop
        journal = Journal(folder, simulator, trackers_of(arguments, folder))
        return execute(simulator, embeddings, journal, pair.label, interrupt, pair.out)


def show_comparison(out: Path) -> int:
    """The table and the page of two finished runs."""
    table = write_comparison(out)
    try:
        page = f"report: {make_report([out / half for half in HALVES], out / PAGE)}"
    except ValueError as error:
        page = f"no report page: {error}; then: {resume_command(out)}"
    return printed(lambda: print(f"\n{table}\n\n{page}"), f"everything is saved in {out}")
