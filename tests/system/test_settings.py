"""The facts of settings, on a small configuration of their own."""

import math
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from c2v_sim.system.errors import ConfigError
from c2v_sim.system.parse import read_toml, to_toml
from c2v_sim.system.settings import (
    PAPER,
    POSITIVE,
    REPORT,
    Affects,
    Section,
    changes,
    check_all,
    facts_of,
    fixed,
    names_affecting,
    overlay,
    values_affecting,
    without_idle,
)

of_oven = Section("oven", Affects.RESULT)
of_steam = of_oven.needing(mode="steam")
of_kitchen = Section("kitchen")


@dataclass(frozen=True)
class Baking:
    mode: str = of_oven("dry", "how heat comes", Affects.PACE, ("dry", "steam"), told=PAPER)
    water: float = of_steam(0.5, "litres", above=0.0, most=2.0)
    heat: float = of_oven(200.0, "degrees", **POSITIVE)
    share: float = of_oven(0.5, "of the top", least=0.0, below=1.0)
    salt: float = of_oven(1.0, "grams", above=0.0)
    guests: tuple[str, ...] = of_oven((), "who comes", choices=("Ada", "Bob"))
    luck: int = of_kitchen(0, "of the baker", Affects.BITS)
    ovens: int = of_kitchen(1, "at the same time", Affects.PLACE | Affects.PACE, least=1)
    book: str = of_oven("", "with recipes", told=REPORT)

    def __post_init__(self):
        check_all(self)


def test_names_and_values_follow_from_what_is_affected():
    assert names_affecting(Baking, Affects.PACE) == ["mode", "ovens"]
    assert names_affecting(Baking, Affects.PLACE | Affects.BITS) == ["luck", "ovens"]
    assert values_affecting(Baking(ovens=3), Affects.PACE) == ("dry", 3)


def test_only_what_has_no_bearing_on_the_bits_is_free_on_a_resume():
    assert [s.name for s in facts_of(Baking).values() if s.free] == ["ovens"]
    assert fixed(Baking()).keys() == facts_of(Baking).keys() - {"ovens"}
    before, after = Baking(ovens=2, guests=("Ada",)), Baking(ovens=3, luck=7)
    assert changes(before, after) == {"guests": "(was ('Ada',), now ())", "luck": "(was 0, now 7)"}


def test_what_is_told_in_other_words_is_not_compared_there():
    compared = {
        w: {s.name for s in facts_of(Baking).values() if s.compared_in(w)} for w in (REPORT, PAPER)
    }
    assert compared[REPORT] == {"mode", "water", "heat", "share", "salt", "guests"}
    assert compared[PAPER] == {"water", "heat", "share", "salt", "guests", "book"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"water": 0.0}, r"water must be in \(0, 2\], got 0.0"),
        ({"water": 2.5}, r"water must be in \(0, 2\], got 2.5"),
        ({"share": -1.0}, "share must be at least 0.0, got -1.0"),
        ({"share": 1.0}, r"share must be in \[0, 1\), got 1.0"),
        ({"share": math.nan}, "share must be at least 0.0, got nan"),
        ({"heat": math.inf}, "heat must be a positive number, got inf"),
        ({"heat": math.nan}, "heat must be a positive number, got nan"),
        ({"salt": 0.0}, "salt must be positive, got 0.0"),
        ({"guests": ["Eve"]}, "guests must be one of Ada, Bob; got 'Eve'"),
        ({"guests": "Ada"}, "guests must be a list of texts, got 'Ada'"),
        ({"ovens": True}, "ovens must be a whole number, got True"),
        ({"heat": "hot"}, "heat must be a number, got 'hot'"),
        ({"sault": 1.0}, r"unknown setting 'sault'; did you mean salt\? Known: mode, water"),
    ],
)
def test_values_are_checked_by_what_is_declared(given, message):
    with pytest.raises(ConfigError, match=message):
        overlay(Baking(), given)
    assert overlay(Baking(), {"salt": math.inf, "heat": 3}).heat == 3


def test_what_has_no_effect_is_refused_or_goes_back_to_its_default():
    wet = overlay(Baking(), {"water": 1.0})
    message = "water = 1.0 has no effect with mode = dry; it goes with mode = steam"
    with pytest.raises(ConfigError, match=message):
        without_idle(wet, {"water": 1.0}, (), ())
    assert without_idle(wet, {"water": 1.0}, (), ("water",)) == Baking()
    assert without_idle(wet, {}, (), ()) == Baking()  # of the base
    without_idle(Baking(), {"water": 0.5}, (), ())  # a file that lists every setting
    with pytest.raises(ConfigError, match=r"water = 0\.5 has no effect"):
        without_idle(Baking(), {"water": 0.5}, ("water",), ())
    steam = Baking(mode="steam", water=1.0)
    assert without_idle(steam, {"water": 1.0}, ("water",), ()) == steam


def test_toml_and_back(tmp_path):
    config = Baking(guests=("Bob", "Ada"), heat=1.5)
    (tmp_path / "baking.toml").write_text(to_toml(config))
    assert overlay(Baking(), read_toml(tmp_path / "baking.toml")) == config


def test_every_field_must_have_facts():
    @dataclass(frozen=True)
    class Forgotten:
        salt: float = field(default=1.0)

    with pytest.raises(TypeError, match=r"Forgotten\.salt has no facts"):
        facts_of(Forgotten)


def test_one_more_setting_is_one_line(tmp_path):
    """In a process of its own, in which the two configurations have some lines more."""
    script = Path(__file__).parents[1] / "support" / "one_more_setting.py"
    command = [sys.executable, "-P", str(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "all of them know it"
