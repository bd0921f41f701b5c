"""The main command: `python -m c2v_sim.run --dataset cifar10 --clients 100` (also `c2v-sim run`).

run/settings.py reads its flags, run/files.py keeps what a run leaves. Exit codes: 0 done, 1
training or writing failed, 2 bad input, 130 Ctrl-C, 143 SIGTERM.
"""

import argparse
import dataclasses
import json
import shlex
import sys
import traceback
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from c2v_sim.config import RunConfig, to_toml
from c2v_sim.data.federation import Federation
from c2v_sim.data.load import Dataset, load_dataset
from c2v_sim.data.partition import Partition, make_partition
from c2v_sim.index.encoders.embed import Embeddings
from c2v_sim.ops._dispatch import native_missing
from c2v_sim.run import files as run_directory
from c2v_sim.run.index import bring_index, prepare_index
from c2v_sim.run.journal import Journal
from c2v_sim.run.progress import Progress
from c2v_sim.run.settings import parser, settings_of
from c2v_sim.run.tensorboard import summary_writer
from c2v_sim.simulator.records import Result
from c2v_sim.simulator.simulator import Simulator
from c2v_sim.system.errors import (
    CheckpointError,
    ConfigError,
    Interrupted,
    InUse,
    TrainingError,
    fail,
)
from c2v_sim.system.files import in_use
from c2v_sim.system.interrupt import Interrupt
from c2v_sim.system.machine import keep_freed_memory
from c2v_sim.system.text import percent


def load_data(config: RunConfig) -> Dataset:
    """The data set that `config` names."""
    return load_dataset(
        config.dataset,
        data_dir=Path(config.data_dir) if config.data_dir else None,
        require_real_data=config.require_real_data,
        train_size=config.train_size or None,
        test_size=config.test_size or None,
        sample_fraction=config.sample_fraction,
        min_samples=config.min_samples,
        train_fraction=config.train_fraction,
        seed=config.seed,
    )


def build_federation(config: RunConfig, saved: Path | None = None) -> tuple[Federation, RunConfig]:
    """Load the data and deal it to clients; `saved` is the partition of a run to be resumed."""
    dataset = load_data(config)
    if config.clients_per_domain:
        clients = config.clients_per_domain * len(dataset.domain_names)
        config = dataclasses.replace(config, clients=max(1, clients))
    if saved is not None:
        return Federation(dataset, Partition.load(saved)), config
    partition = make_partition(
        config.partition,
        dataset.y_train.numpy(),
        dataset.y_test.numpy(),
        clients=config.clients or None,
        seed=config.seed,
        alpha=config.alpha,
        lda=config.lda,
        shards_per_client=config.shards_per_client,
        domain_train=None if dataset.domain_train is None else dataset.domain_train.numpy(),
        domain_test=None if dataset.domain_test is None else dataset.domain_test.numpy(),
        clients_per_domain=config.clients_per_domain or None,
        natural_train=None if dataset.client_train is None else dataset.client_train.numpy(),
        natural_test=None if dataset.client_test is None else dataset.client_test.numpy(),
    )
    return Federation(dataset, partition), dataclasses.replace(config, clients=partition.clients)


def new_path(folder: str, dataset: str, kind: str, seed: int) -> Path:
    """<folder>/<time>-<dataset>-<kind>-<seed>, with a counter where that exists."""
    time = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    name = "".join(c if c.isalnum() or c in "-_" else "-" for c in dataset).strip("-")
    stem = f"{time}-{name}-{kind}-{seed}"
    path, count = Path(folder) / stem, 1
    while path.exists():
        count += 1
        path = path.with_name(f"{stem}-{count}")
    return path


def prepare(
    arguments: argparse.Namespace,
) -> tuple[Simulator, Embeddings | None, Path, str]:
    """Everything that can go wrong with the input goes wrong here, before a file is written."""
    config, label = settings_of(arguments)
    if arguments.tensorboard:
        summary_writer()  # refused here where the package is missing
    out: Path | None = arguments.resume or arguments.out
    if arguments.out is not None and arguments.out.exists():
        raise ConfigError(f"--out {out} exists and is never overwritten; name another, or --resume")
    saved = arguments.resume / run_directory.PARTITION if arguments.resume else None
    federation, config = build_federation(config, saved)
    out = out or new_path("runs", federation.dataset.name, config.algorithm, config.seed)
    simulator = Simulator(federation, config, scratch=out / "scratch")
    if arguments.resume:
        check_same_data(arguments.resume, federation)
    embeddings = prepare_index(simulator, arguments.resume)
    return simulator, embeddings, out, label


def check_same_data(folder: Path, federation: Federation) -> None:
    """A resumed run must see the data it began with."""
    began = json.loads((folder / run_directory.MANIFEST).read_text())["data"]
    now = run_directory.data_facts(federation)
    if began["sha256"] != now["sha256"]:
        raise ConfigError(
            f"--resume {folder}: the run began on {began['name']} ({began['sha256'][:12]}), but "
            f"{now['name']} ({now['sha256'][:12]}) was found now. Give the same --data-dir"
        )


def train(simulator: Simulator, journal: Journal) -> None:
    """All remaining rounds, each recorded as it ends; a checkpoint at the end or when stopped.

    After a failure no checkpoint is made: the last one is good, the state now may not be.
    """
    bar = Progress(simulator.config.rounds, simulator.cohort_size, done=simulator.round)
    try:
        for record in simulator.rounds(bar.client):
            journal.round(record)
            bar.round(record)
        journal.checkpoint()
    except Interrupted:
        journal.checkpoint()
        raise
    finally:
        bar.close()


def show_start(simulator: Simulator, out: Path, label: str) -> None:
    config, federation = simulator.config, simulator.federation
    lines = [
        f"c2v_sim: {federation.dataset.name}, {federation.partition.convention}, "
        f"{federation.partition.clients} clients, cohort {simulator.cohort_size}",
        f"  {config.model} ({simulator.layout.trainable:,} parameters), {config.algorithm}, "
        f"rounds: {config.rounds} × {config.local_epochs} local epochs, seed {config.seed}, "
        f"{simulator.lanes.count} lanes on {simulator.device}",
        f"  {simulator.row_plan.sentence}" + improved(simulator),
        f"  settings: {label}" + (" (a short run, not the paper's)" if "quick" in label else ""),
        f"  run directory: {out}",
    ]
    if simulator.pretrained is not None:
        start = simulator.pretrained
        lines.append(f"  starts from {start.file}; classifier {start.classifier}")
    if simulator.device.type == "cpu" and native_missing:
        lines.append(f"  torch references run instead of the native operators: {native_missing}")
    print("\n".join(lines), file=sys.stderr, flush=True)


def improved(simulator: Simulator) -> str:
    """What the client index does in this run, in words."""
    config, index = simulator.config, simulator.index
    if not config.improve:
        return ""
    encoder = f", {index.provenance['encoder']} encoder" if index else ""
    return f"; {config.index} index{encoder} improves {', '.join(config.improve)}"


def show_result(simulator: Simulator, result: Result, out: Path, label: str) -> None:
    best, final = result.best, result.final
    dataset, config = simulator.federation.dataset, simulator.config
    rows = [
        ("mean over clients", best.accuracy, final.accuracy),
        ("weighted by samples", best.accuracy_weighted, final.accuracy_weighted),
        ("worst 10 % of clients", best.accuracy_worst10, final.accuracy_worst10),
        ("whole test set", best.accuracy_global, final.accuracy_global),
    ]
    print(f"\n{dataset.name}, {config.model}, {config.algorithm}, seed {config.seed}, {label}")
    print(f"{'test accuracy':<24}{f'best (round {best.round})':>18}{f'last ({final.round})':>12}")
    for name, at_best, at_end in rows:
        print(f"{name:<24}{percent(at_best):>18}{percent(at_end):>12}")
    print(f"run directory: {out}")


def finish(journal: Journal, label: str) -> int:
    """Write and show the results; the exit code says whether all of them are on disk."""
    simulator, out = journal.simulator, journal.out
    failed = run_directory.finish(out, simulator, journal.result)
    show_result(simulator, journal.result, out, label)
    if not failed and journal.error is None:
        return 0
    lost = journal.unsaved() + [f"{name} ({e.strerror or e})" for name, e in failed.items()]
    message = f"training is done, but {out} could not be written. Not saved: {', '.join(lost)}"
    if failed or journal.torn:
        return fail(1, f"{message}. Free some space, then: {resume_command(out)}")
    print(f"c2v_sim: warning: {message}", file=sys.stderr, flush=True)
    return 0


def resume_command(out: Path) -> str:
    return shlex.join(["python", "-m", "c2v_sim.run", "--resume", str(out)])


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
        done = f"{interrupt.word} after round {simulator.round}{lost}"
        return fail(interrupt.code, f"{done}; go on with: {again}")
    finally:
        journal.close()


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit code."""
    arguments = parser().parse_args(argv)
    keep_freed_memory()
    with Interrupt() as interrupt, ExitStack() as held:
        try:
            if arguments.print_config:
                print(to_toml(settings_of(arguments)[0]), end="")
                return 0
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
                command = shlex.join(["python", "-m", "c2v_sim.run", *(argv or sys.argv[1:])])
                run_directory.create_run_directory(out, simulator, label, command)
                held.enter_context(in_use(out))
            journal = Journal(out, simulator, tensorboard=arguments.tensorboard)
            return execute(simulator, embeddings, journal, label, interrupt)
        except InUse as error:
            return fail(2, str(error))
        except OSError as error:
            return fail(1, f"{out}: {error.filename}: {error.strerror}; nothing was trained")
        finally:
            simulator.close()


if __name__ == "__main__":
    sys.exit(main())
