"""What the run command was told: its flags -> a RunConfig, checked.

Settings come from a preset (`quick` unless told otherwise), then `--config FILE`, then flags; a
resumed run has those that it began with.
"""

import argparse
from pathlib import Path

from c2v_sim.config import FIELDS, RunConfig, make_config, read_toml, saved_config
from c2v_sim.run import files as run_directory
from c2v_sim.run.presets import PRESETS, preset
from c2v_sim.run.resume import check_rounds
from c2v_sim.run.tensorboard import FOLDER
from c2v_sim.system.errors import ConfigError
from c2v_sim.system.flags import add_flags, check_resume, new_parser, typed
from c2v_sim.system.settings import Affects, names_affecting

ABOUT = """One federated run. Settings come from a preset (quick unless --preset or --config is
given), then --config, then flags. The defaults shown are those of the preset quick; --print-config
shows what is in force."""
USAGE = "c2v_sim.run [--config FILE] [--out DIR | --resume DIR] [settings]"


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
    out.add_argument("--label", metavar="TEXT", help="what the outputs call these settings")
    out.add_argument(
        "--tensorboard",
        action="store_true",
        help=f"write event files for TensorBoard into <run directory>/{FOLDER}",
    )
    add_flags(out, FIELDS.values(), vars(preset(PRESETS[0])), everything)
    return out


def settings_of(arguments: argparse.Namespace) -> tuple[RunConfig, str]:
    """The configuration and a label that says where it came from."""
    given = typed(arguments, FIELDS)
    if arguments.resume is not None:
        return resumed_settings(arguments, given), "resumed"
    in_file = read_toml(arguments.config) if arguments.config else {}
    label = arguments.preset or ("" if arguments.config else PRESETS[0])
    base = preset(label) if label else RunConfig()
    label = " + ".join(filter(None, (label, arguments.config and arguments.config.name)))
    label = arguments.label or label
    config = make_config(in_file | given, base, flags=given)
    untouched = make_config(in_file, base)
    changed = [k for k in given if given[k] != getattr(untouched, k) and not FIELDS[k].free]
    return config, label + (f", changed: {', '.join(changed)}" if changed else "")


def resumed_settings(arguments: argparse.Namespace, given: dict[str, object]) -> RunConfig:
    """The settings of the run in --resume; other ones are refused by name."""
    file = arguments.resume / run_directory.CONFIG
    if not file.is_file():
        raise ConfigError(f"--resume {file.parent}: no run directory ({file.name} is not there)")
    saved = saved_config(file)
    wanted = make_config(given, saved)
    length = names_affecting(RunConfig, Affects.LENGTH)  # nothing before depends on it
    check_resume(arguments, (saved, wanted), without=("preset", "config", "out"), but=length)
    check_rounds(file.parent, saved, wanted)
    return wanted
