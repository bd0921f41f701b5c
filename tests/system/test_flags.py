"""Settings as flags: what is shown, what is read, and what a resume refuses."""

import argparse
from dataclasses import dataclass

import pytest

from c2v_sim.index import __main__ as index_command
from c2v_sim.run import settings as run_command
from c2v_sim.system.errors import ConfigError
from c2v_sim.system.flags import (
    add_flags,
    check_resume,
    help_text,
    new_parser,
    typed,
    whole_or_auto,
)
from c2v_sim.system.settings import Affects, Section, facts_of

of_oven = Section("oven", Affects.RESULT)


@dataclass(frozen=True)
class Baking:
    mode: str = of_oven("dry", "how heat comes", choices=("dry", "steam"), common=True)
    water: float = of_oven.needing(mode="steam")(0.5, "litres, 100 % pure", above=0.0)
    guests: tuple[str, ...] = of_oven((), "who comes")
    salted: bool = Section("taste", Affects.RESULT)(True, "with salt", common=True)
    ovens: int = Section("kitchen", Affects.PLACE)(0, "at the same time", auto=True)


def parser(everything=False):
    out = new_parser(
        lambda: parser(True), prog="bake", description="Bakes.", usage="bake [settings]"
    )
    out.add_argument("--resume")
    out.add_argument("--out")
    add_flags(out, facts_of(Baking).values(), vars(Baking()), everything)
    return out


def printed(capsys, *flags):
    with pytest.raises(SystemExit) as stop:
        parser().parse_args(flags)
    assert stop.value.code == 0
    return capsys.readouterr().out


def test_the_short_help_has_the_common_settings_and_the_long_one_all(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    short, whole = printed(capsys, "--help"), printed(capsys, "--help-all")
    assert "--mode NAME" in short
    assert "how heat comes: dry, steam (default: dry)" in short
    assert "--salted, --no-salted" in short
    assert "taste:" in short
    for text in ("--water", "--guests", "kitchen:"):
        assert text not in short
        assert text in whole
    assert whole.index("oven:") < whole.index("--guests [TEXT ...]") < whole.index("taste:")


def test_a_help_says_what_is_needed_and_the_default():
    texts = {
        n: help_text(s, vars(Baking())).replace("\xa0", " ") for n, s in facts_of(Baking).items()
    }
    assert texts["water"] == "litres, 100 % pure; with mode = steam (default: 0.5)"
    assert texts["salted"] == "with salt (default: yes)"
    assert texts["guests"] == "who comes (default: none)"
    assert texts["ovens"] == "at the same time (default: 0)"


def test_only_what_was_typed_is_a_setting():
    read = parser().parse_args(["--guests", "Ada", "Bob", "--no-salted", "--ovens", "auto"])
    given = {"guests": ("Ada", "Bob"), "salted": False, "ovens": 0}
    assert typed(read, facts_of(Baking)) == given
    assert typed(parser().parse_args(["--guests"]), facts_of(Baking)) == {"guests": ()}
    assert typed(parser().parse_args(["--guests", "none"]), facts_of(Baking)) == {"guests": ()}
    assert typed(parser().parse_args([]), facts_of(Baking)) == {}


def test_auto_is_a_whole_number():
    assert (whole_or_auto("3"), whole_or_auto("auto")) == (3, 0)
    with pytest.raises(argparse.ArgumentTypeError, match="must be a whole number or auto, got 'x'"):
        whole_or_auto("x")


def test_a_resume_with_other_settings_is_refused_by_name():
    arguments = parser().parse_args(["--resume", "cake"])
    check_resume(arguments, (Baking(), Baking(ovens=3)))
    pairs = (Baking(), Baking(water=1.0)), (Baking(), Baking(guests=("Ada",)))
    message = r"--resume cake: the run has other settings: water \(was 0.5, now 1.0\); guests"
    with pytest.raises(ConfigError, match=message):
        check_resume(arguments, *pairs)
    arguments = parser().parse_args(["--resume", "cake", "--out", "tart"])
    with pytest.raises(ConfigError, match="takes its settings from cake: leave out --out"):
        check_resume(arguments, (Baking(), Baking()))


@pytest.mark.parametrize("command", [run_command, index_command])
def test_the_help_of_the_commands_is_short_and_fits_80_columns(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    short, whole = (command.parser(everything).format_help() for everything in (False, True))
    assert len(short.splitlines()) < 60
    assert max(map(len, whole.splitlines())) <= 80
    flags = [line.split()[0] for line in whole.splitlines() if line.startswith("  --")]
    assert len(flags) == len(set(flags))
    assert len([line for line in short.splitlines() if line.startswith("  --")]) < 25
    for name in ("dataset", "clients", "partition", "alpha", "seed", "lanes"):
        assert f"--{name} " in short
