"""A grid of runs: `python -m c2v_sim.sweep FILE.toml` (also `c2v-sim sweep`; sweep/file.py).

The directory (--out, or sweeps/<name of the file>) holds

sweep.toml         the sweep, with the settings given by --set
cells/NAME/        the run directory of each cell; NAME.toml: its settings, NAME.log: what it said,
                   NAME.failed: where it failed, why
table.md .csv .json  the results side by side
shared/            what cells have in common, until all of them are done

The same command goes on with an interrupted sweep and tries failed cells again. A file that has
grown since (a seed more, a case more) goes on with what is there; one that changes or drops a cell
is refused. With `--shard i/n` n such commands share a directory (sweep/shards.py). Exit codes: 0
all cells are done, 1 some failed, 2 bad input, 130 Ctrl-C, 143 SIGTERM.
"""

import argparse
import contextlib
import fnmatch
import shlex
import sys
import threading
from contextlib import ExitStack, nullcontext
from pathlib import Path

import tomli_w

from c2v_sim.config import FIELDS
from c2v_sim.run.files import write_text
from c2v_sim.sweep.cluster import connect, run_on_ray
from c2v_sim.sweep.estimate import estimate
from c2v_sim.sweep.file import SWEEP, Cell, Sweep, read_sweep, state
from c2v_sim.sweep.jobs import run_jobs
from c2v_sim.sweep.memory import memory_needs
from c2v_sim.sweep.runner import Runner, how_many, index_users, named, places_of
from c2v_sim.sweep.shards import SHARED, Shard, begun_together
from c2v_sim.sweep.tables.deviations import in_words
from c2v_sim.sweep.tables.write import FILES, write_tables
from c2v_sim.system.errors import ConfigError, InUse, fail
from c2v_sim.system.files import LOCK, in_use
from c2v_sim.system.interrupt import Interrupt
from c2v_sim.system.output import printed
from c2v_sim.system.parse import parse_toml
from c2v_sim.system.settings import changes
from c2v_sim.system.text import duration


def parser() -> argparse.ArgumentParser:
    text = (__doc__ or "").split("\n\n")[0]
    out = argparse.ArgumentParser(prog="c2v_sim.sweep", description=text)
    out.add_argument("file", help="a sweep file, or the name of a shipped sweep (small/tau)")
    out.add_argument("--out", type=Path, metavar="DIR", help="default: sweeps/<name of the file>")
    out.add_argument("--dry-run", action="store_true", help="list the cells, estimate the time")
    out.add_argument("--jobs", type=int, metavar="N", help="runs side by side; default: as fits")
    out.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of all cells, over those in [base]; may be repeated",
    )
    out.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="run the cells on a Ray cluster; without an address on the one here",
    )
    out.add_argument(
        "--shard", metavar="I/N", help="as one of N that share --out, such as a SLURM array's tasks"
    )
    out.add_argument("--only", metavar="PATTERN", help="only cells with such a name: 'fedavg-*'")
    return out


def parse_settings(given: list[str]) -> dict[str, object]:
    """`key=value` -> the settings by name."""
    settings = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text}: must be KEY=VALUE, such as rounds=3")
        settings[key.strip()] = value_of(key.strip(), value)
    return settings


def value_of(setting: str, text: str) -> object:
    """A value as TOML has it, or as a flag takes it: .1 for 0.1, bare words for texts."""
    try:
        return parse_toml(f"value = {text}")["value"]
    except ValueError:
        kind = FIELDS[setting].type if setting in FIELDS else str
    if kind is float:
        with contextlib.suppress(ValueError):  # a text is refused as what it is
            return float(text)
    return text.split() if kind == tuple[str, ...] else text


def text_with(text: str, settings: dict[str, object]) -> str:
    """The sweep file with `settings` in its [base]."""
    if not settings:
        return text
    content = parse_toml(text)
    content["base"] = content.get("base", {}) | settings
    return f"# with --set {' '.join(settings)}\n" + tomli_w.dumps(content)


def check_same(out: Path, sweep: Sweep) -> None:
    """Refuse to go on with another sweep than the one that `out` holds; it may have grown."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"--out {out} is a file; name a directory")
    if not (out / SWEEP).exists():
        begun = {
            LOCK,
            SHARED,
            f"{SWEEP}.partial",
        }  # by a sweep that was killed soon
        if out.exists() and any(p.name not in begun for p in out.iterdir()):
            raise ConfigError(f"--out {out} is not empty and holds no {SWEEP}; name another")
        return
    saved = {cell.name: cell.config for cell in read_sweep(out / SWEEP).cells}
    now = {cell.name: cell.config for cell in sweep.cells}
    differing = [f"cell {name} is not in this one" for name in saved.keys() - now.keys()]
    for name in saved.keys() & now.keys():
        changed = changes(saved[name], now[name])
        differing += [f"{key} of cell {name} {values}" for key, values in changed.items()]
    if differing:
        more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
        raise ConfigError(
            f"--out {out} holds another sweep: {'; '.join(sorted(differing)[:3])}{more}. "
            "Name another directory"
        )


def chosen_cells(sweep: Sweep, pattern: str | None) -> list[Cell]:
    cells = [c for c in sweep.cells if pattern is None or fnmatch.fnmatchcase(c.name, pattern)]
    if not cells:
        names = ", ".join(cell.name for cell in sweep.cells[:5])
        raise ConfigError(f"--only {pattern}: no cell has such a name; cells: {names}, …")
    return cells


def show_plan(out: Path, cells: list[Cell], at_once: int) -> None:
    """--dry-run: the cells, what is left of them, and how long that will take."""
    states, settings = {c.name: state(out, c) for c in cells}, differing_settings(cells)
    todo = [cell for cell in cells if states[cell.name] != "done"]
    users = index_users(out, todo)
    print("measuring a few steps of every kind of run …", file=sys.stderr, flush=True)
    times = estimate(out, todo, users, at_once)
    width = max(len(cell.name) for cell in cells) + 2
    for cell in cells:
        left = duration(times.cells[cell.name]) if cell.name in times.cells else "–"
        print(f"{cell.name:<{width}}{states[cell.name]:<12}{left:>8}  {settings[cell.name]}")
    for key, seconds in times.indices.items():
        print(f"index {named(users[key])}: {duration(seconds)}")
    work = sum(times.cells.values()) + sum(times.indices.values())
    total = times.total(at_once, places_of(todo, at_once))
    print(
        f"{len(todo)} of {len(cells)} cells to run: {duration(work)} of work, about "
        f"{duration(total)} with {at_once} side by side.\n"
        "An estimate from a few steps here and now; nothing was written but caches of the data."
    )


def differing_settings(cells: list[Cell]) -> dict[str, str]:
    """Cell -> its settings that are not those of all cells."""
    varying = [name for name in FIELDS if len({getattr(c.config, name) for c in cells}) > 1]

    def text(cell: Cell) -> str:
        own = {name: getattr(cell.config, name) for name in varying}
        changed = {name: value for name, value in own.items() if value != FIELDS[name].default}
        return ", ".join(f"{name} = {in_words(name, value)}" for name, value in changed.items())

    return {cell.name: text(cell) for cell in cells}


def show_end(sweep: Sweep, out: Path, failed: dict[str, str]) -> int:
    """The tables, where they are, and what failed; the exit code."""
    text = write_tables(sweep, out)
    code = printed(lambda: print(text), f"the tables are written into {out}")
    pictures = shlex.join(["python", "-m", "c2v_sim.report", str(out), "-o", "report.html"])
    print(f"tables: {', '.join(str(out / name) for name in FILES)}", file=sys.stderr)
    print(f"pictures: {pictures}", file=sys.stderr)
    for name, why in failed.items():
        print(f"failed: {name}: {why}", file=sys.stderr)
    return 1 if failed else code


def run_all(runner: Runner, sweep: Sweep, text: str) -> int:
    """Keep the sweep's text, run its cells, and show what came of them; the exit code."""
    out, sharing = runner.out, runner.shard is not None
    with ExitStack() as held:
        if not sharing:
            held.enter_context(in_use(out))
        with begun_together(out) if sharing else nullcontext():
            check_same(out, sweep)  # again: another one may have begun and ended here since
            write_text(out / SWEEP, text)
        runner.run()
        with begun_together(out) if sharing else nullcontext():
            return show_end(sweep, out, runner.failed)


def main(argv: list[str] | None = None) -> int:
    """Run the command; the exit code."""
    arguments = parser().parse_args(argv)
    again = shlex.join(["python", "-m", "c2v_sim.sweep", *(argv or sys.argv[1:])])
    with Interrupt() as interrupt:
        try:
            if arguments.ray is not None and (arguments.shard or arguments.jobs):
                raise ConfigError(
                    "--ray decides itself what runs where: leave --shard and --jobs out"
                )
            if arguments.jobs is not None and arguments.jobs < 1:
                raise ConfigError(f"--jobs must be at least 1, got {arguments.jobs}")
            shard = Shard.parse(arguments.shard) if arguments.shard else None
            settings = parse_settings(arguments.set)
            sweep = read_sweep(arguments.file, settings)
            out = arguments.out or Path("sweeps") / Path(arguments.file).stem
            cells = chosen_cells(sweep, arguments.only)
            check_same(out, sweep)
            at_once = arguments.jobs or how_many(cells)
            if arguments.ray is not None:
                connect(arguments.ray)
                out, at_once = out.resolve(), len(cells)  # the cluster decides
            if arguments.dry_run:
                show_plan(out, cells, at_once)
                return 0
            needs = memory_needs(cells)
        except (ValueError, OSError) as error:
            return fail(2, str(error))
        except KeyboardInterrupt:
            return fail(interrupt.code, f"{interrupt.word} before the first cell")
        interrupt.stop = threading.Event()
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            return fail(2, f"--out {out}: no directory can be made there ({error.strerror})")
        try:
            start = run_jobs if arguments.ray is None else run_on_ray
            runner = Runner(out, cells, at_once, interrupt, needs, shard, start)
            code = run_all(runner, sweep, text_with(sweep.text, settings))
        except (InUse, ConfigError) as error:
            return fail(2, str(error))
        except OSError as error:
            return fail(1, f"{error.filename or out}: {error.strerror or error}; again: {again}")
    if interrupt.stop.is_set():
        return fail(interrupt.code, f"{interrupt.word}; go on with: {again}")
    return code


if __name__ == "__main__":
    sys.exit(main())
