"""Settings, described once: each field of a configuration carries every fact about itself.

    of_training = Section("training", Affects.RESULT)

    @dataclass(frozen=True)
    class RunConfig:
        rounds: int = of_training(100, "communication rounds", Affects.MEMORY, least=1)

What a resume may change, what makes another experiment, which cells of a sweep share data or take
equally long, the flags and their help: all of it is derived from these facts, so that a new setting
is one line in one file.
"""

import dataclasses
import difflib
import functools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Flag, auto
from typing import TYPE_CHECKING, Any, TypeVar

from c2v_sim.system.errors import ConfigError
from c2v_sim.system.text import brief, is_text

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Value = str | int | float | bool | tuple[str, ...]
Config = TypeVar("Config", bound="DataclassInstance")
T = TypeVar("T")


class Affects(Flag):
    """What a setting bears on; each has one of the first three."""

    RESULT = auto()  # what is learned: runs that differ in it are different experiments
    BITS = auto()  # chance and rounding alone
    PLACE = auto()  # where, how fast and how safely the work is done
    DATA = auto()  # which samples are loaded
    CLIENTS = auto()  # how they are dealt to clients; with DATA: the federation
    INDEX = auto()  # the client index of a run
    PACE = auto()  # how long a step takes
    WORK = auto()  # how many steps a round has, and how many at the same time
    MEMORY = auto()  # how many bytes are needed
    LENGTH = auto()  # when a training ends, not the way there


NOTHING_MORE = Affects(0)
NONE = "none"  # an empty list, in words
REPORT, PAPER = "report", "paper"  # of runs; of what differs from the paper
LARGEST = 2**63 - 1  # of whole numbers: what tensors and arrays can hold
MOST_BITS = 4096  # of numbers at all: Python cannot even write much larger ones
POSITIVE: dict[str, Any] = {"above": 0.0, "below": math.inf}
SEEDS: dict[str, Any] = {"least": 0, "most": 2**64 - 1}  # torch's generators take no more


@dataclass(frozen=True)
class Setting:
    """Everything that is known about one setting."""

    help: str
    section: str
    affects: Affects
    name: str = ""
    type: Any = None  # int, float, bool, str or tuple[str, ...]
    default: object = None
    choices: tuple[str, ...] | None = None
    least: float | None = None
    above: float | None = None
    most: float | None = None
    below: float | None = None
    # Other settings and their values, all of which it needs to have an effect.
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    common: bool = False  # among the few that the short help shows
    auto: bool = False  # its flag takes `auto` for 0
    shared: bool = False  # of a part of a run: the run's own setting of that name
    told: str = ""  # REPORT or PAPER: tells it in words of its own, not as a setting
    before: Any = None  # what runs did before the setting existed, where that is not the default

    @property
    def free(self) -> bool:
        """Whether a resume may change it."""
        return not self.affects & (Affects.RESULT | Affects.BITS)

    def compared_in(self, where: str) -> bool:
        return bool(self.affects & Affects.RESULT) and where != self.told

    def as_field(self) -> Any:
        return field(default=self.default, metadata={"setting": self})


@dataclass(frozen=True)
class Section:
    """A part of the settings, with what all of them affect and need; called, it makes a field."""

    title: str
    affects: Affects = NOTHING_MORE
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def needing(self, **needs: str | Collection[str]) -> "Section":
        """The same for settings that need certain values of others to have an effect."""
        allowed = {k: (v,) if isinstance(v, str) else tuple(v) for k, v in needs.items()}
        return dataclasses.replace(self, needs={**self.needs, **allowed})

    def __call__(
        self,
        default: T,
        help: str,
        affects: Affects = NOTHING_MORE,
        choices: Iterable[str] | None = None,
        **facts: Any,
    ) -> T:  # in truth a field with this default
        facts |= {"default": default, "needs": self.needs}
        facts |= {"choices": None if choices is None else tuple(choices)}
        return Setting(help, self.title, self.affects | affects, **facts).as_field()


@functools.cache
def facts_of(kind: type["DataclassInstance"]) -> dict[str, Setting]:
    """The settings of a configuration, by name, in the order of its fields."""
    out = {}
    for f in dataclasses.fields(kind):
        if "setting" not in f.metadata:
            raise TypeError(f"{kind.__name__}.{f.name} has no facts: make it with a Section")
        out[f.name] = dataclasses.replace(f.metadata["setting"], name=f.name, type=f.type)
    return out


def names_affecting(kind: type["DataclassInstance"], what: Affects) -> list[str]:
    """The settings that affect any of `what`."""
    return [s.name for s in facts_of(kind).values() if s.affects & what]


def values_affecting(config: "DataclassInstance", what: Affects) -> tuple[Value, ...]:
    """The same for configurations that are alike in all that affects any of `what`."""
    return tuple(getattr(config, name) for name in names_affecting(type(config), what))


# ---- checks ----------------------------------------------------------------------------------

# A setting's type -> the types that its value may have, and their name.
_KINDS: dict[object, tuple[tuple[type, ...], str]] = {
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    bool: ((bool,), "true or false"),
    str: ((str,), "a text"),
    tuple[str, ...]: ((tuple,), "a list of texts"),
}


def check_all(config: "DataclassInstance") -> None:
    """Refuse values of another type, or outside of choices and ranges."""
    for setting in facts_of(type(config)).values():
        check(setting, getattr(config, setting.name))


def check(setting: Setting, value: object) -> None:
    """Refuse a value of another type, or outside of the setting's choices and range."""
    name = setting.name
    check_type(setting, value)
    if isinstance(value, int) and setting.most is None and abs(value) > LARGEST:
        raise ConfigError(f"{name} must be at most {LARGEST}, got {brief(value)}")
    for item in several(value):
        if setting.choices is not None and item not in setting.choices:
            known = ", ".join(setting.choices)
            raise ConfigError(f"{name} must be one of {known}; got {brief(item)}")
        if isinstance(item, str) and not is_text(item):
            raise ConfigError(f"{name} must be text in UTF-8 without NUL, got {item!r}")
    twice = [item for item, count in Counter(several(value)).items() if count > 1]
    if twice:
        raise ConfigError(f"{name} must name each of its values once, got {twice[0]!r} twice")
    if isinstance(value, (int, float)):
        check_range(setting, value)


def check_type(setting: Setting, value: object) -> None:
    allowed, wanted = _KINDS[setting.type]
    mistaken = isinstance(value, bool) and bool not in allowed  # which Python takes for a number
    if mistaken or not isinstance(value, allowed):
        raise ConfigError(f"{setting.name} must be {wanted}, got {brief(value)}")
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise ConfigError(f"{setting.name} must be a smaller number, got {brief(value)}")
    if setting.type == tuple[str, ...] and not all(
        isinstance(item, str) for item in several(value)
    ):
        raise ConfigError(f"{setting.name} must be {wanted}, got {brief(value)}")


def check_range(setting: Setting, value: float) -> None:
    if setting.least is not None and not value >= setting.least:
        raise ConfigError(f"{setting.name} must be at least {setting.least}, got {brief(value)}")
    inside = [setting.above is None or value > setting.above]
    inside += [setting.most is None or value <= setting.most]
    inside += [setting.below is None or value < setting.below]
    if not all(inside):
        raise ConfigError(f"{setting.name} must be {range_of(setting)}, got {brief(value)}")


def range_of(setting: Setting) -> str:
    """Where the numbers of a setting lie, in words."""
    high = setting.below if setting.most is None else setting.most
    if high is None or high == math.inf:
        return "positive" if high is None else "a positive number"
    low = setting.least if setting.above is None else setting.above
    opening, closing = "[" if setting.above is None else "(", ")" if setting.most is None else "]"
    return f"in {opening}{_number(low)}, {_number(high)}{closing}"


def _number(value: float | None) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def several(value: object) -> tuple[object, ...]:
    """The items of a list setting; of any other its one value."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def as_value(setting: Setting, value: object) -> object:
    """What a TOML file says, as a field has it: a list is a tuple, none an empty one."""
    listed = isinstance(value, list) or (setting.type == tuple[str, ...] and value == NONE)
    return as_tuple(several(value)) if listed else value


def as_tuple(items: Iterable[object]) -> tuple[object, ...]:
    """The items of a list; `none` alone stands for no item."""
    given = tuple(items)
    return () if given == (NONE,) else given


def shown(value: object) -> str:
    return ", ".join(map(str, several(value))) or "nothing"


def unmet_need(
    setting: Setting, value_of: Callable[[str], object]
) -> tuple[str, tuple[str, ...]] | None:
    """The first setting, and the values it should have, for want of which this has no effect."""
    for other, allowed in setting.needs.items():
        if not set(several(value_of(other))) & set(allowed):
            return other, allowed
    return None


def overlay(base: Config, given: Mapping[str, object]) -> Config:
    """`base` with what was given on top; unknown settings are refused."""
    check_names(type(base), given)
    known = facts_of(type(base))
    return dataclasses.replace(base, **{k: as_value(known[k], v) for k, v in given.items()})


def check_names(kind: type["DataclassInstance"], given: Iterable[str]) -> None:
    """Refuse names that are no settings."""
    known = facts_of(kind)
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ConfigError(f"unknown setting {brief(key)}; {hint}Known: {', '.join(known)}")


def without_idle(
    config: Config, given: Mapping[str, object], flags: Collection[str], shared: Collection[str]
) -> Config:
    """`config` with the default for all that has no effect; what the user gave so is refused.

    flags: the settings typed by hand, refused even at their default. shared: those that other runs
    need as well, never refused.
    """
    idle: dict[str, Any] = {}
    for name, setting in facts_of(type(config)).items():
        need = unmet_need(setting, functools.partial(getattr, config))
        if need is None:
            continue
        harmless = name not in given or name in shared or getattr(config, name) == setting.default
        if name in flags or not harmless:
            other, allowed = need
            raise ConfigError(
                f"{name} = {shown(given[name])} has no effect with {other} = "
                f"{shown(getattr(config, other))}; it goes with {other} = {' or '.join(allowed)}"
            )
        idle[name] = setting.default
    return dataclasses.replace(config, **idle)


def changes(saved: Config, wanted: Config) -> dict[str, str]:
    """The settings that differ, other than those that a resume may change -> `(was x, now y)`."""
    pairs = {
        name: (getattr(saved, name), getattr(wanted, name))
        for name, setting in facts_of(type(saved)).items()
        if not setting.free
    }
    return {name: f"(was {a}, now {b})" for name, (a, b) in pairs.items() if a != b}


def fixed(config: "DataclassInstance") -> dict[str, object]:
    """The settings that a resume may not change, as dataclasses.asdict has them."""
    known = facts_of(type(config))
    return {name: v for name, v in dataclasses.asdict(config).items() if not known[name].free}
