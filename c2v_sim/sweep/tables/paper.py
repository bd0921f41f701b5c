"""The numbers of the paper, by table, row and column: paper_tables.toml."""

import functools
import tomllib
from collections.abc import Iterable
from importlib import resources

from c2v_sim.run.files import JsonObject


@functools.cache
def paper_tables() -> JsonObject:
    """Table -> row … -> column -> mean or [mean, std]."""
    return tomllib.loads(
        resources.files("c2v_sim.sweep.tables").joinpath("paper_tables.toml").read_text()
    )


def paper_entry(keys: Iterable[str]) -> object:
    """What stands under these keys; None where nothing does."""
    entry: object = paper_tables()
    for key in keys:
        entry = entry.get(key) if isinstance(entry, dict) else None
    return entry


def paper_value(name: str, labels: list[str]) -> tuple[float | None, float | None]:
    """Mean and std of one place of the table `name` (with dots); None where it has none."""
    value = paper_entry([*name.split("."), *labels])
    if isinstance(value, list):
        return value[0], value[1]
    return (value, None) if isinstance(value, int | float) else (None, None)


def paper_names() -> list[str]:
    """The tables; the main one is one for each data set."""
    of_main = [f"main_table.{data}" for data in paper_tables()["main_table"]]
    return [*of_main, *(name for name in paper_tables() if name not in ("meta", "main_table"))]
