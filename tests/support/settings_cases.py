"""Commands as hypothesis strategies: flags and TOML, drawn from what every setting says of itself.

A new setting is covered by itself. A value is good (of the type, in the range or the choices),
wrong (anything else), or good and without effect, where what it needs was not chosen with it.
"""

import math
from dataclasses import dataclass, field
from datetime import date

from hypothesis import strategies as st

from c2v_sim.system.settings import Setting

LIST = tuple[str, ...]
LARGEST = 2**31  # no setting has a use for more
# What a shell or a TOML file can hold: no NUL (ends an argument), no half of a surrogate pair.
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
BROKEN_TEXTS = ("\udcff", "a\udc80b")  # how Python shows bytes of an argument that are no UTF-8


@dataclass
class Case:
    """What is typed: settings in a file and as flags, and which are wrong in themselves."""

    preset: str | None = None
    in_file: dict[str, object] | None = None  # None: no --config
    flags: dict[str, object] = field(default_factory=dict)
    wrong: set[str] = field(default_factory=set)  # settings, or keys and flags that do not exist
    unknown_flags: list[str] = field(default_factory=list)

    def arguments(self, config: str) -> list[str]:
        """The flags; `config` is the file that holds `in_file`."""
        out = ["--preset", self.preset] if self.preset else []
        out += [] if self.in_file is None else ["--config", config]
        for name, value in self.flags.items():
            out += as_flag(name, value)
        return out + self.unknown_flags


def as_flag(name: str, value: object) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [flag if value else flag.replace("--", "--no-", 1)]
    if isinstance(value, list):
        return [flag, *value]
    return [f"{flag}={value}"]


# ---- values ----------------------------------------------------------------------------------


def good(setting: Setting) -> st.SearchStrategy:
    """Values that the setting's own facts allow."""
    if setting.choices is not None and setting.type == LIST:
        return st.lists(st.sampled_from(setting.choices), unique=True, max_size=3)
    if setting.choices is not None:
        return st.sampled_from(setting.choices)
    if setting.type == LIST:
        return st.lists(TEXTS, unique=True, max_size=3)
    numbers = {int: _good_whole, float: _good_number}
    return numbers[setting.type](setting) if setting.type in numbers else _plain(setting)


def _plain(setting: Setting) -> st.SearchStrategy:
    return st.booleans() if setting.type is bool else TEXTS


def _good_whole(setting: Setting) -> st.SearchStrategy:
    least = int(_low(setting))
    most = LARGEST if _high(setting) == math.inf else int(_high(setting))
    return st.integers(least, min(most, least + 40)) | st.integers(least, most)


def _good_number(setting: Setting) -> st.SearchStrategy:
    # Not all of the way down: a number that is nearly nothing is a case of its own.
    low, high = _low(setting), _high(setting)
    numbers = st.floats(
        low,
        None if high == math.inf else high,
        exclude_min=setting.above is not None,
        exclude_max=setting.below is not None and high < math.inf,
        allow_nan=False,
        allow_infinity=setting.below is None and setting.most is None,
    )
    whole = st.integers(math.floor(low) + 1, 9).filter(lambda n: in_range(setting, n))
    return numbers | whole if low < 8 and high > math.floor(low) + 1 else numbers


def _low(setting: Setting) -> float:
    low = setting.least if setting.above is None else setting.above
    return 0.0 if low is None else low


def _high(setting: Setting) -> float:
    high = setting.below if setting.most is None else setting.most
    return math.inf if high is None else high


def in_range(setting: Setting, value: float) -> bool:
    checks = [setting.least is None or value >= setting.least]
    checks += [setting.above is None or value > setting.above]
    checks += [setting.most is None or value <= setting.most]
    checks += [setting.below is None or value < setting.below]
    # A whole number without a bound of its own must fit into a tensor.
    small = setting.most is not None or not isinstance(value, int) or abs(value) < 2**63
    return all(checks) and value == value and small


def _outside(setting: Setting) -> st.SearchStrategy:
    """Numbers of the right type that the range leaves out."""
    numbers = st.sampled_from([-1, -7, -LARGEST, -(10**30), 0, 1, 2, 10**30, 10**400])
    if setting.type is float:
        numbers = st.sampled_from([-1.5, -1e300, 0.0, 1.0, 1.5, 1e300, math.inf, math.nan])
        numbers |= st.just(-math.inf)
    return numbers.filter(lambda n: not in_range(setting, n))


def wrong_in_file(setting: Setting) -> st.SearchStrategy:
    """TOML values of another type, or outside of choices and range."""
    others: dict[object, object] = {int: 3, float: 2.5, bool: True, str: "words", LIST: ["a", "b"]}
    own = {float: (int, float)}.get(setting.type, (setting.type,))
    values = [value for kind, value in others.items() if kind not in own]
    values += [{"a": 1}, date(2026, 1, 1), [[1]], [{"a": 1}]]
    out = st.sampled_from(values)
    if setting.choices is not None:
        if setting.type == LIST:
            out |= st.just([setting.choices[0]] * 2)
        unknown = TEXTS.filter(lambda text: text not in setting.choices)
        return out | (unknown.map(lambda text: [text]) if setting.type == LIST else unknown)
    if setting.type in (int, float):
        return out | _outside(setting) | st.just(10**400)
    return out | st.just("a\0b") if setting.type is str else out


def wrong_as_flag(setting: Setting) -> st.SearchStrategy:
    """Texts that are no such value, or numbers out of range."""
    if setting.type is bool:
        return st.just("yes")  # flags of this kind take no value
    if setting.choices is not None:
        unknown = TEXTS.filter(lambda text: text not in setting.choices and text[:1] != "-")
        twice = st.just([setting.choices[0]] * 2)
        return unknown.map(lambda text: [text]) | twice if setting.type == LIST else unknown
    if setting.type in (int, float):
        words = ["many", "", "1,5", "0x10", "--", "9" * 5000 if setting.type is int else "1e"]
        words += ["1.5", "1e3", "nan", "inf"] if setting.type is int else []
        return st.sampled_from(words) | _outside(setting)
    return st.sampled_from(BROKEN_TEXTS) if setting.type is str else st.nothing()


# ---- commands --------------------------------------------------------------------------------


@st.composite
def commands(
    draw: st.DrawFn, known: dict[str, Setting], presets: tuple[str, ...], least: int = 0
) -> Case:
    """Some settings with good values and mostly with what they need; now and then wrong ones."""
    case = Case(preset=draw(st.sampled_from([None, *presets])) if draw(st.booleans()) else None)
    if presets and draw(st.booleans()):
        case.in_file = {}
    chosen = draw(st.lists(st.sampled_from(sorted(known)), unique=True, min_size=least, max_size=5))
    with_needs = draw(st.integers(0, 3)) > 0
    for name in chosen:
        needs = {
            other: v for other, v in known[name].needs.items() if with_needs and other in known
        }
        for other, allowed in needs.items():
            value = draw(st.sampled_from(allowed))
            _put(draw, case, other, [value] if known[other].type == LIST else value)
        _put(draw, case, name, draw(good(known[name])))
    if draw(st.integers(0, 2)) == 0:
        _spoil(draw, case, known)
    return case


def _put(draw: st.DrawFn, case: Case, name: str, value: object) -> None:
    place = case.flags if case.in_file is None or draw(st.booleans()) else case.in_file
    place[name] = value


def _spoil(draw: st.DrawFn, case: Case, known: dict[str, Setting]) -> None:
    """One wrong value, or one key or flag that does not exist."""
    name = draw(st.sampled_from(sorted(known)))
    if draw(st.integers(0, 4)) == 0:
        name = draw(st.sampled_from(["frobnicate", name + "_x", "x" + name]))
        case.wrong.add(name)
        if case.in_file is not None and draw(st.booleans()):
            case.in_file[name] = 1
        else:
            case.unknown_flags = as_flag(name, 1)
        return
    in_file = case.in_file is not None and draw(st.booleans())
    strategy = (wrong_in_file if in_file else wrong_as_flag)(known[name])
    if strategy.is_empty:
        return
    case.wrong.add(name)
    (case.in_file if in_file else case.flags)[name] = draw(strategy)
