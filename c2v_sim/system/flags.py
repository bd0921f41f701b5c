"""Settings as flags of a command: one per setting, in groups by section, and what was typed.

`--help` shows the few that people change, `--help-all` every one.
"""

import argparse
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from c2v_sim.system.errors import ConfigError
from c2v_sim.system.settings import NONE, Setting, as_tuple, changes, several, unmet_need
from c2v_sim.system.text import one_line

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

NO_BREAK = "\N{NO-BREAK SPACE}"
LIST = tuple[str, ...]
METAVARS: dict[object, str] = {int: "N", float: "X"}


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(one_line(message))


def new_parser(
    whole: Callable[[], argparse.ArgumentParser], prog: str, description: str, usage: str
) -> argparse.ArgumentParser:
    """A parser with the options for help; `whole` makes the one that describes everything."""
    out = Parser(prog, usage, description, formatter_class=Layout, add_help=False)
    out.add_argument("-h", "--help", action="help", help="show the common settings and stop")
    out.add_argument(
        "--help-all", action=HelpAll, const=whole, nargs=0, help="show all settings and stop"
    )
    return out


class Layout(argparse.HelpFormatter):
    """A column for the flags that most of them fit in; no break within a name or a default."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26)

    def _split_lines(self, text: str, width: int) -> list[str]:
        lines = textwrap.wrap(text, width, break_on_hyphens=False)
        return [line.replace(NO_BREAK, " ") for line in lines]


class HelpAll(argparse.Action):
    """Prints the help of the parser that `const` makes."""

    def __call__(self, parser: argparse.ArgumentParser, *others: object) -> None:
        assert callable(self.const)
        self.const().print_help()
        parser.exit()


def add_flags(
    parser: argparse.ArgumentParser,
    settings: Collection[Setting],
    defaults: Mapping[str, object],
    everything: bool,
) -> None:
    """A flag per setting, in a group per section; all of them or only the common ones are shown."""
    for title in dict.fromkeys(setting.section for setting in settings):
        group = parser.add_argument_group(title)
        for setting in (s for s in settings if s.section == title):
            text = help_text(setting, defaults).replace("%", "%%")
            add_flag(group, setting, text if everything or setting.common else argparse.SUPPRESS)


def add_flag(group: argparse._ArgumentGroup, setting: Setting, text: str) -> None:
    flag = "--" + setting.name.replace("_", "-")
    common: dict[str, Any] = {"default": None, "help": text, "dest": setting.name}
    if setting.type is bool:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, **common)
        return
    or_none = (NONE,) if setting.type == LIST else ()
    common |= {"choices": setting.choices and (*setting.choices, *or_none)}
    common |= {"metavar": "NAME" if setting.choices else METAVARS.get(setting.type, "TEXT")}
    if setting.type == LIST:
        group.add_argument(flag, nargs="*", **common)
    else:
        group.add_argument(flag, type=whole_or_auto if setting.auto else setting.type, **common)


def help_text(setting: Setting, defaults: Mapping[str, object]) -> str:
    """What a setting is, what it may be, what it needs beyond the defaults, and its own."""
    default, need = defaults[setting.name], unmet_need(setting, defaults.get)
    names = f": {', '.join(setting.choices)}" if setting.choices else ""
    value = " ".join(map(str, several(default))) or (NONE if setting.type == LIST else "")
    if isinstance(default, bool):
        value = "yes" if default else "no"
    if need is not None and len(need[1]) == 1:
        names += f"; with {need[0]} = {need[1][0]}"
    return f"{setting.help}{names}" + (f" (default:{NO_BREAK}{value})" if value else "")


def whole_or_auto(text: str) -> int:
    """A number of lanes; `auto` is 0."""
    if text != "auto" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number or auto, got {text!r}")
    return 0 if text == "auto" else int(text)


def typed(arguments: argparse.Namespace, names: Iterable[str]) -> dict[str, object]:
    """Those of the settings `names` that were given as flags."""
    given = {name: getattr(arguments, name) for name in names}
    values = {name: value for name, value in given.items() if value is not None}
    return {name: as_tuple(v) if isinstance(v, list) else v for name, v in values.items()}


def check_resume(
    arguments: argparse.Namespace,
    *configs: tuple["DataclassInstance", "DataclassInstance"],
    without: Sequence[str] = ("out",),
    but: Collection[str] = (),
) -> None:
    """Refuse a resume with other settings than (saved, wanted), or with options it cannot have.

    but: settings that may change all the same.
    """
    folder = arguments.resume
    for name in without:
        if getattr(arguments, name) is not None:
            raise ConfigError(f"--resume takes its settings from {folder}: leave out --{name}")
    changed: dict[str, str] = {}
    for saved, wanted in configs:
        changed |= {k: v for k, v in changes(saved, wanted).items() if k not in but}
    if changed:
        told = "; ".join(f"{name} {values}" for name, values in changed.items())
        raise ConfigError(f"--resume {folder}: the run has other settings: {told}")
