"""Texts of JSON and TOML files → plain data; ValueError for every text that is none.

Brackets in brackets, some thousand deep, end the interpreter's own parsers with RecursionError, and
no file of this package is like that.
"""

import json
import tomllib
from typing import Any

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
