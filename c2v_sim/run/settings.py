"""What the run command was told: its flags -> a RunConfig, checked.

Settings come from a preset (`quick` unless told otherwise), then `--config FILE`, then flags; a
resumed run has those that it began with.
"""

import argparse
from pathlib import Path
from typing import Any

from c2v_sim.config import (
    FIELDS,
    FREE_ON_RESUME,
    PRESETS,
    RunConfig,
    make_config,
    preset,
    read_toml,
    saved_config,
)
from c2v_sim.run import files as run_directory
from c2v_sim.run.tensorboard import FOLDER
from c2v_sim.system.errors import ConfigError


def parser() -> argparse.ArgumentParser:
    """One flag for every field of RunConfig, and those about the run itself."""
    text = "One federated run. Settings come from a preset, then --config, then flags."
    usage = "c2v_sim.run [--preset NAME] [--config FILE] [--out DIR | --resume DIR] [settings]"
    out = argparse.ArgumentParser(prog="c2v_sim.run", description=text, usage=usage)
    out.add_argument("--preset", choices=PRESETS, help="base settings (default: quick)")
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
    settings = out.add_argument_group("settings (defaults: see --print-config)")
    for f in FIELDS.values():
        flag, text = "--" + f.name.replace("_", "-"), f.metadata["help"]
        common: dict[str, Any] = {"default": None, "help": text, "dest": f.name}
        if f.type is bool:
            settings.add_argument(flag, action=argparse.BooleanOptionalAction, **common)
        elif f.type == tuple[str, ...]:
            settings.add_argument(flag, nargs="*", choices=f.metadata["choices"], **common)
        else:
            kind = whole_or_auto if f.name == "lanes" else f.type
            settings.add_argument(flag, type=kind, choices=f.metadata["choices"], **common)
    return out


def whole_or_auto(text: str) -> int:
    """A number of lanes; `auto` is 0."""
    if text != "auto" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number or auto, got {text!r}")
    return 0 if text == "auto" else int(text)


def settings_of(arguments: argparse.Namespace) -> tuple[RunConfig, str]:
    """The configuration and a label that says where it came from."""
    typed = {k: v for k, v in vars(arguments).items() if k in FIELDS and v is not None}
    if arguments.resume is not None:
        return resumed_settings(arguments, typed), "resumed"
    given = read_toml(arguments.config) if arguments.config else {}
    label = arguments.preset or ("" if arguments.config else "quick")
    base = preset(label) if label else RunConfig()
    label = " + ".join(filter(None, (label, arguments.config and arguments.config.name)))
    label = arguments.label or label
    config = make_config(given | typed, base, flags=typed)
    untouched = make_config(given, base)
    changed = [k for k in typed if typed[k] != getattr(untouched, k) and k not in FREE_ON_RESUME]
    return config, label + (f", changed: {', '.join(changed)}" if changed else "")


def resumed_settings(arguments: argparse.Namespace, typed: dict[str, Any]) -> RunConfig:
    """The settings of the run in --resume; other ones are refused by name."""
    folder = arguments.resume
    if not (folder / run_directory.CONFIG).is_file():
        raise ConfigError(
            f"--resume {folder}: no run directory ({run_directory.CONFIG} is not there)"
        )
    for name in ("preset", "config", "out"):
        if getattr(arguments, name) is not None:
            raise ConfigError(f"--resume takes its settings from {folder}: leave out --{name}")
    saved = saved_config(folder / run_directory.CONFIG)
    wanted = make_config(typed, saved)
    changed = [
        f"{name} (was {getattr(saved, name)}, now {getattr(wanted, name)})"
        for name in FIELDS
        if getattr(saved, name) != getattr(wanted, name) and name not in FREE_ON_RESUME
    ]
    if changed:
        raise ConfigError(f"--resume {folder}: the run has other settings: {'; '.join(changed)}")
    return wanted
