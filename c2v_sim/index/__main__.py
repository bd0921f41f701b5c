"""Builds a client index: `python -m c2v_sim.index --partition by-domain --clients-per-domain 10`.

The directory that it writes holds index.safetensors (what a run takes), index.json (the same
provenance, losses and quality numbers as text), settings.json, the training's checkpoint and, with
--plot, pictures. With --compare it holds a table and heat maps of several indices instead
(similarity/compare.py). Exit codes: 0 done, 1 training or writing failed, 2 bad input, 130 Ctrl-C,
143 SIGTERM: both finish the step in flight and write the checkpoint.
"""

import argparse
import dataclasses
import json
import sys
import threading
import traceback
from contextlib import ExitStack
from pathlib import Path

from c2v_sim.config import FIELDS, RunConfig, make_config
from c2v_sim.data.federation import Federation
from c2v_sim.index.build import index_embeddings, obtain_index
from c2v_sim.index.client_index import ClientIndex
from c2v_sim.index.config import IndexConfig
from c2v_sim.index.encoders.embed import Embeddings
from c2v_sim.index.plots import plot_all
from c2v_sim.index.similarity.compare import ALL, NAME, chosen, compared, write_comparison
from c2v_sim.run import files as run_directory
from c2v_sim.run.build import build_federation, new_path
from c2v_sim.run.index import (
    FEDERATION,
    SETTINGS,
    announce,
    directory_settings,
    say_origin,
    shown_training,
)
from c2v_sim.system.errors import ConfigError, Interrupted, TrainingError, fail, naming, remedy
from c2v_sim.system.files import in_use, make_directory, remove_leftovers, write_atomically
from c2v_sim.system.flags import add_flags, check_resume, new_parser, typed
from c2v_sim.system.interrupt import Interrupt
from c2v_sim.system.machine import keep_freed_memory
from c2v_sim.system.output import printed
from c2v_sim.system.parse import parse_json_object
from c2v_sim.system.settings import facts_of, overlay

INDEX, SUMMARY = "index.safetensors", "index.json"
CHECKPOINT = "training.safetensors"
INDEX_FIELDS = facts_of(IndexConfig)
USAGE = "c2v_sim.index [--out DIR | --resume DIR] [--plot] [--compare] [settings]"


def parser(everything: bool = False) -> argparse.ArgumentParser:
    """One flag for every setting of the federation and of the index."""
    text = (__doc__ or "").split("\n\n")[0]
    out = new_parser(
        lambda: parser(everything=True), prog="c2v_sim.index", description=text, usage=USAGE
    )
    out.add_argument("--out", type=Path, metavar="DIR", help="directory; must not exist yet")
    out.add_argument("--resume", type=Path, metavar="DIR", help="go on with an interrupted one")
    out.add_argument(
        "--plot",
        type=Path,
        nargs="?",
        const=Path(),
        metavar="FILE",
        help="pictures beside the index; with FILE: only the pictures of that saved index",
    )
    out.add_argument(
        "--compare",
        nargs="+",
        metavar="KIND",
        help=f"a table and heat maps of several kinds of index; {ALL}: of every one",
    )
    known = {name: FIELDS[name] for name in FEDERATION if name not in INDEX_FIELDS} | INDEX_FIELDS
    defaults = vars(RunConfig()) | vars(IndexConfig())
    add_flags(out, known.values(), defaults, everything)
    return out


def settings_of(arguments: argparse.Namespace) -> tuple[RunConfig, IndexConfig]:
    """The two configurations: of the federation, and of the index."""
    data, index = typed(arguments, FEDERATION), typed(arguments, INDEX_FIELDS)
    if arguments.resume is None:
        return make_config(data, flags=data), overlay(IndexConfig(), index)
    saved = read_settings(arguments.resume)
    wanted = make_config(data, saved[0]), overlay(saved[1], index)
    check_resume(arguments, (saved[0], wanted[0]), (saved[1], wanted[1]))
    return wanted


def read_settings(folder: Path) -> tuple[RunConfig, IndexConfig]:
    """The settings with which an index was begun; one that did not exist then is the default."""
    try:
        saved: dict[str, object] = parse_json_object((folder / SETTINGS).read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"--resume {folder}: no {SETTINGS} can be read there ({error})"
        ) from error
    data = {name: saved[name] for name in FEDERATION if name in saved}
    index = {k: v for k, v in saved.items() if k not in data or k in INDEX_FIELDS}
    if (folder / INDEX).exists():
        raise ConfigError(f"--resume {folder}: {INDEX} is there already, nothing is left to do")
    with naming(f"--resume {folder}: {SETTINGS}"):
        return make_config(data, shared=FIELDS), overlay(IndexConfig(), index)


@dataclasses.dataclass(frozen=True)
class Task:
    """An index that is to be made, in a directory that exists."""

    federation: Federation
    embeddings: Embeddings
    config: IndexConfig
    data_dir: str
    out: Path
    plot: bool


def prepare(arguments: argparse.Namespace, held: ExitStack) -> Task:
    """All that can be wrong with the input is found here, before a file is written.

    The directory is kept for this process until `held` is closed.
    """
    if arguments.resume and (arguments.resume / SETTINGS).is_file():
        held.enter_context(in_use(arguments.resume))
    run, config = settings_of(arguments)
    if arguments.out is not None and arguments.out.exists():
        raise ConfigError(
            f"--out {arguments.out} exists and is never overwritten; name another, or --resume"
        )
    federation, run = build_federation(run)
    announce(federation, config, run.data_dir)
    embeddings = index_embeddings(federation, config, run.data_dir)
    kind = config.strategy if config.index == "dsa-ign" else config.index
    out = arguments.resume or arguments.out
    out = out or new_path("indices", federation.dataset.name, kind, config.seed)
    if arguments.resume:
        remove_leftovers(out)
    else:
        text = run_directory.to_json(directory_settings(run, config))
        numbered = arguments.out is None
        out = make_directory(out, lambda p: write_settings(p, text), numbered=numbered)
        held.enter_context(in_use(out))
    plot = arguments.plot is not None
    return Task(federation, embeddings, config, run.data_dir, out, plot)


def write_settings(folder: Path, text: str) -> None:
    (folder / SETTINGS).write_text(text)


def show_start(task: Task) -> None:
    dataset, partition, config = task.federation.dataset, task.federation.partition, task.config
    kind = f"{config.strategy}, {config.epochs} epochs" if config.index == "dsa-ign" else "naive"
    print(
        f"c2v_sim: index of {dataset.name}, {partition.convention}, "
        f"{partition.clients} clients\n  {config.index} ({kind}), "
        f"{task.embeddings.encoder} encoder, seed {config.seed}\n  directory: {task.out}",
        file=sys.stderr,
        flush=True,
    )


def show_result(index: ClientIndex, out: Path) -> None:
    about = index.provenance
    print(f"\n{about['federation']['data']['name']}, {index.clients} clients, ", end="")
    print(f"{about['settings']['index']}, {about['encoder']} encoder")
    for name, value in index.quality.items():
        print(f"  {name.replace('_', ' '):<22}{value:>8.3f}")
    print(f"index: {out / INDEX}")


def write_results(index: ClientIndex, out: Path, plot: bool) -> None:
    text = json.dumps({"clients": index.clients} | index.provenance, indent=1) + "\n"
    write_atomically(out / SUMMARY, lambda p: p.write_text(text))
    index.save(out / INDEX)  # last: with it the directory is complete
    if plot:
        plot_all(index, out)


def plot_saved(arguments: argparse.Namespace) -> int:
    """--plot FILE: pictures of a saved index, beside it or in --out."""
    folder = arguments.out or arguments.plot.parent
    try:
        index = ClientIndex.load(arguments.plot)
        folder.mkdir(parents=True, exist_ok=True)
        made = plot_all(index, folder)
    except (ValueError, OSError) as error:
        return fail(2, str(error))
    return printed(lambda: print(*made, sep="\n"), f"the pictures are in {folder}")


def compare(arguments: argparse.Namespace, interrupt: Interrupt) -> int:
    """--compare: indices of one federation, in one table; the exit code."""
    names = chosen(arguments.compare)
    for flag in ("resume", "plot", "index", "strategy"):
        if getattr(arguments, flag) is not None:
            raise ConfigError(f"--{flag} has no effect with --compare; leave it out")
    run, config = settings_of(arguments)
    if arguments.out is not None and arguments.out.exists():
        raise ConfigError(f"--out {arguments.out} exists and is never overwritten; name another")
    federation, run = build_federation(run)
    embeddings = index_embeddings(federation, config, run.data_dir)
    interrupt.stop = threading.Event()
    begun: list[str] = []

    def say(name: str) -> None:
        begun.append(name)
        print(f"index {len(begun)}/{len(names)}: {name}", file=sys.stderr, flush=True)

    try:
        made = compared(federation, names, config, embeddings, run.data_dir, interrupt.stop, say)
        indices = dict(made)
        out = arguments.out or new_path("indices", federation.dataset.name, NAME, config.seed)
        numbered = arguments.out is None
        text: list[str] = []
        out = make_directory(
            out, lambda p: text.append(write_comparison(indices, p)), numbered=numbered
        )
    except TrainingError as error:
        return fail(1, str(error))
    except Interrupted:
        what = "the indices that were finished are cached; type the command again to go on"
        return fail(interrupt.code, f"{interrupt.word}; {what}")
    return printed(lambda: print(text[-1], f"comparison: {out}", sep="\n"), f"it is in {out}")


def execute(task: Task, interrupt: Interrupt) -> int:
    """Obtain the index and write it into the directory; the exit code."""
    show_start(task)
    out = task.out
    again = f"python -m c2v_sim.index --resume {out}"
    try:
        with shown_training(task.config) as on_point:
            index = obtain_index(
                task.federation,
                task.config,
                data_dir=task.data_dir,
                embeddings=task.embeddings,
                checkpoint=out / CHECKPOINT,
                on_point=on_point,
                stop=interrupt.stop,
            )
        say_origin(index)
        write_results(index, out, task.plot)
    except TrainingError as error:
        if error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        return fail(1, str(error))
    except ValueError as error:  # a checkpoint that is damaged or of another training
        return fail(2, str(error))
    except Interrupted:
        return fail(interrupt.code, f"{interrupt.word}; go on with: {again}")
    except OSError as error:
        what = f"cannot write {error.filename or out}: {error.strerror}"
        return fail(1, f"{what}. {remedy(error).capitalize() or 'Mend that'}, then: {again}")
    return printed(lambda: show_result(index, out), f"the index is saved: {out / INDEX}")


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit code."""
    arguments = parser().parse_args(argv)
    if arguments.plot not in (None, Path()):
        return plot_saved(arguments)
    keep_freed_memory()
    with ExitStack() as held, Interrupt() as interrupt:
        try:
            if arguments.compare is not None:
                return compare(arguments, interrupt)
            task = prepare(arguments, held)
            interrupt.stop = threading.Event()
        except (ValueError, OSError, RuntimeError, ImportError) as error:
            return fail(2, str(error))
        except KeyboardInterrupt:
            what = "before training; finished parts of the embeddings are kept"
            return fail(interrupt.code, f"{interrupt.word} {what}")
        return execute(task, interrupt)


if __name__ == "__main__":
    sys.exit(main())
