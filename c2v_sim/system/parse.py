"""Texts of JSON and TOML files → plain data, and its types; ValueError for texts that are none.

Brackets in brackets, some thousand deep, end the interpreter's own parsers with RecursionError, and
no file of this package is like that.
"""

import dataclasses
import json
import tomllib
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_origin

import tomli_w

from c2v_sim.system.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

TOO_DEEP = "its lists or tables are nested too deep"


def parse_json(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error


def parse_json_object(text: str | bytes) -> dict[str, Any]:
    """The same, where the text must be an object."""
    data = parse_json(text)
    if not isinstance(data, dict):
        raise ValueError(f"it must hold an object, {{…}}, got {data!r:.40}")
    return data


def parse_toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error


def read_toml(path: Path) -> dict[str, Any]:
    """The settings in a TOML file; the error names the file and the line."""
    try:
        return parse_toml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from error


def to_toml(config: "DataclassInstance") -> str:
    """All settings as TOML, in the order of the fields; `--config` reads it back."""
    return tomli_w.dumps(dataclasses.asdict(config))


def is_a(value: object, kind: Any) -> bool:
    """Whether plain data is of a type: str, int, float, list[…], dict[str, …] or one of some."""
    origin, inside = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin is types.UnionType:
        return any(is_a(value, one) for one in inside)
    if origin is list:
        return isinstance(value, list) and all(is_a(item, inside[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(is_a(item, inside[1]) for item in value.values())
    if isinstance(value, bool) or kind is bool:  # which Python takes for a number
        return isinstance(value, bool) and kind is bool
    if kind is None or kind is types.NoneType:
        return value is None
    return isinstance(value, (int, float) if kind is float else kind)
