"""What the run command was told: its flags -> a RunConfig, checked.

Settings come from a preset (`quick` unless told otherwise), then `--config FILE`, then flags; a
resumed run has those that it began with. The config.toml of a run lists every setting, so nothing
of a preset is left where it is given.
"""

import argparse
from pathlib import Path

from c2v_sim.config import FIELDS, RunConfig, make_config, read_toml, saved_config
from c2v_sim.run import files as run_directory
from c2v_sim.run.presets import PRESETS, preset
from c2v_sim.run.resume import check_rounds
from c2v_sim.run.trackers import HELP, trackers_of
from c2v_sim.system.errors import ConfigError, naming
from c2v_sim.system.flags import add_flags, check_resume, new_parser, typed
from c2v_sim.system.ranks.torchrun import SECONDS
from c2v_sim.system.settings import Affects, as_value, check, check_names, names_affecting

ABOUT = """One federated run. Settings come from a preset (quick unless --preset is given), then
--config, then flags. The defaults shown are those of the preset quick; --print-config shows what is
in force."""
EXISTS = "--out {} exists and is never overwritten; name another, or --resume"
USAGE = "c2v_sim.run [settings] [--beside-original] [--out DIR | --resume DIR]"


def parser(everything: bool = False) -> argparse.ArgumentParser:
    """One flag for every field of RunConfig, and those about the run itself."""
    out = new_parser(
        lambda: parser(everything=True), prog="c2v_sim.run", description=ABOUT, usage=USAGE
    )
    out.add_argument(
        "--preset", choices=PRESETS, metavar="NAME", help=f"base settings: {', '.join(PRESETS)}"
    )
    out.add_argument("--config", type=Path, metavar="FILE", help="TOML file of settings")
    out.add_argument("--print-config", action="store_true", help="show the settings and stop")
    out.add_argument("--out", type=Path, metavar="DIR", help="run directory; must not exist yet")
    out.add_argument("--resume", type=Path, metavar="DIR", help="go on with an interrupted run")
    out.add_argument(
        "--beside-original",
        action="store_true",
        help="train the plain algorithm as well, and compare",
    )
    named = "what the outputs call these settings" if everything else argparse.SUPPRESS
    out.add_argument("--label", metavar="TEXT", help=named)
    for tracker, text in HELP.items():
        shown = text if everything or tracker == "tensorboard" else argparse.SUPPRESS
        out.add_argument(f"--{tracker}", action="store_true", help=shown)
    out.add_argument(
        "--ranks", type=positive, metavar="N", help="processes that share the run (torchrun)"
    )
    rarely = {
        "--rank-timeout": (float, SECONDS, "X", "seconds that a rank waits for the others"),
        "--max-restarts": (int, 0, "N", "how often --ranks begins anew after a rank was killed"),
    }
    for flag, (kind, default, metavar, text) in rarely.items():
        text = f"{text} (default: {default:g})" if everything else argparse.SUPPRESS
        out.add_argument(flag, type=kind, default=default, metavar=metavar, help=text)
    add_flags(out, FIELDS.values(), vars(preset(PRESETS[0])), everything)
    return out


def check_options(arguments: argparse.Namespace) -> None:
    """Refuse options that are no settings where they cannot be had."""
    out, resumed = arguments.out, arguments.resume
    trackers_of(arguments, None)  # refused here where a package is missing
    if out is not None and out.exists():
        raise ConfigError(EXISTS.format(out))
    if arguments.beside_original and resumed and (resumed / run_directory.CONFIG).is_file():
        raise ConfigError(
            f"--resume {resumed}: this run has no original beside it; leave out --beside-original"
        )


def positive(text: str) -> int:
    """A number of ranks."""
    if not text.isdecimal() or text == "0":
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, got {text!r}")
    return int(text)


def check_ranks(arguments: argparse.Namespace, started: int | None, *, paired: bool) -> None:
    """Refuse flags about ranks without effect; `started`: how many torchrun has started."""
    if paired and (arguments.ranks or started or 1) > 1:
        raise ConfigError("--beside-original runs on one rank; start the two runs by themselves")
    if arguments.ranks and started not in (None, arguments.ranks):
        raise ConfigError(
            f"--ranks {arguments.ranks}: torchrun has started {started} already; leave it out"
        )
    if arguments.max_restarts and not arguments.ranks:
        raise ConfigError("--max-restarts goes with --ranks; torchrun has a flag of that name")
    if arguments.max_restarts < 0 or not arguments.rank_timeout > 0:
        raise ConfigError(
            "--max-restarts must be at least 0 and --rank-timeout above 0, got "
            f"{arguments.max_restarts} and {arguments.rank_timeout:g}"
        )


def settings_of(arguments: argparse.Namespace) -> tuple[RunConfig, str]:
    """The configuration and a label that says where it came from."""
    if arguments.resume is not None:
        return resumed_settings(arguments, arguments.resume), "resumed"
    given = typed(arguments, FIELDS)
    in_file = read_toml(arguments.config) if arguments.config else {}
    name = arguments.preset or PRESETS[0]
    base = preset(name)
    says_all = FIELDS.keys() <= in_file.keys()
    parts = ["" if says_all else name, arguments.config and arguments.config.name]
    label = arguments.label or " + ".join(filter(None, parts))
    if arguments.config:
        check_file(arguments.config, in_file)
    config = make_config(in_file | given, base, flags=given)
    before = {k: as_value(FIELDS[k], v) for k, v in (vars(base) | in_file).items()}
    changed = [k for k in given if given[k] != before[k] and not FIELDS[k].free]
    return config, label + (f", changed: {', '.join(changed)}" if changed else "")


def check_file(path: Path, in_file: dict[str, object]) -> None:
    """Refuse what is wrong in itself, whether a flag takes its place or not."""
    with naming(path):
        check_names(RunConfig, in_file)
        for name, value in in_file.items():
            check(FIELDS[name], as_value(FIELDS[name], value))


def resumed_settings(
    arguments: argparse.Namespace, folder: Path, *, of_pair: bool = False
) -> RunConfig:
    """The settings of the run in `folder`; other ones are refused by name.

    of_pair: what was typed is for another run too, and may be without effect here.
    """
    file = folder / run_directory.CONFIG
    if not file.is_file():
        raise ConfigError(f"--resume {folder}: no run directory ({file.name} is not there)")
    given, saved = typed(arguments, FIELDS), saved_config(file)
    wanted = make_config(given, saved, shared=given if of_pair else ())
    length = names_affecting(RunConfig, Affects.LENGTH)  # nothing before depends on it
    check_resume(arguments, (saved, wanted), without=("preset", "config", "out"), but=length)
    check_rounds(folder, saved, wanted)
    return wanted
