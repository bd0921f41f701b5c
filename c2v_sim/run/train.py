"""Training in a run directory that exists: the index, the rounds, the results; the exit code."""

import sys
import traceback
from pathlib import Path

from c2v_sim.index.encoders.embed import Embeddings
from c2v_sim.run.index import bring_index
from c2v_sim.run.journal import Journal
from c2v_sim.run.progress import Progress, resume_command, show_result, show_start
from c2v_sim.run.results import write_results
from c2v_sim.run.resume import go_on
from c2v_sim.simulator.simulator import Simulator
from c2v_sim.system import ranks
from c2v_sim.system.errors import (
    CheckpointError,
    ConfigError,
    Interrupted,
    NoRoom,
    TrainingError,
    fail,
    remedy,
)
from c2v_sim.system.interrupt import Interrupt
from c2v_sim.system.output import printed
from c2v_sim.system.ranks import torchrun


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
        if ranks.is_first():
            go_on(journal.out, simulator)
        show_start(simulator, journal.out, label)
        train(simulator, journal)
        if simulator.client_accuracy is None and simulator.config.eval_every:
            simulator.evaluate()  # it was resumed after its last round
        return finish(journal, label, pair) if ranks.is_first() else 0
    except (CheckpointError, ConfigError) as error:
        return fail(2, str(error))
    except TrainingError as error:
        if error.__cause__ is None:  # the same settings would end so again
            return fail(1, f"{error}. What was done before is in {journal.out}")
        traceback.print_exception(error.__cause__)
        return fail(1, f"{error}. {journal.goes_on().capitalize()}: {again}")
    except NoRoom as error:  # in the middle of a round: the last checkpoint is good
        if ranks.size() > 1:
            return torchrun.tell(1, error, f"Then: {again}")
        return fail(1, f"{error}. {remedy(error).capitalize() or 'Mend that'}, then: {again}")
    except Interrupted:
        interrupt.number = max(number or 0 for number in ranks.gather(interrupt.number)) or None
        lost = f"; NOT saved: {', '.join(journal.unsaved())}" if journal.unsaved() else ""
        begun = simulator.index is not None or not simulator.config.needs_client_index
        when = f"after round {simulator.round}" if begun else "while the client index was made"
        of_half = f" of {journal.out.name}" if pair else ""
        done = f"{interrupt.word} {when}{of_half}{lost}"
        return fail(interrupt.code, f"{done}; go on with: {again}")
    except Exception as error:
        if ranks.size() == 1:
            raise
        at = f"That was in round {simulator.round + 1}; {journal.goes_on()}: {again}"
        return torchrun.tell(1, error, at)
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


def finish(journal: Journal, label: str, pair: Path | None) -> int:
    """Write the results and show them, or leave that to the pair; the exit code says whether all of
    them are on disk."""
    simulator, out = journal.simulator, journal.out
    failed = write_results(out, simulator, journal.result, recorded=journal.recorded)
    whole = not failed and journal.error is None
    kept = "training is done" + (f" and everything is saved in {out}" if whole else "")
    shown = 0
    if pair is None:
        shown = printed(lambda: show_result(simulator, journal.result, out, label), kept)
    if whole:
        return shown
    lost = journal.unsaved() + [f"{name} ({e.strerror or e})" for name, e in failed.items()]
    message = f"training is done, but {out} could not be written. Not saved: {', '.join(lost)}"
    if failed:
        error = journal.error or next(iter(failed.values()))
        help = remedy(error).capitalize() or "Mend that"
        return fail(1, f"{message}. {help}, then: {resume_command(pair or out)}")
    print(f"c2v_sim: warning: {message}", file=sys.stderr, flush=True)
    return shown
